// out[i] = round_to(x[i], fmt, rounding, draw_i) for float and fixed formats, element by element.
//
// Thread t of the grid handles elements t, t + T, t + 2T, ... in row-major order, where T is the
// number of all threads. Every value is widened exactly to double and rounded by common/round.h, so
// the bits are those of every other backend. Stochastic draws are keyed by the row-major index,
// never by the thread. Affine and block formats are not supported here: on a GPU only Triton rounds
// to them. This file must be compiled with -fmad=false, without -use_fast_math and -ftz=true.
#include <stdexcept>
#include <type_traits>

#include "views.h"

namespace lpk::cuda {
namespace {

struct Rule {
  Format fmt;
  ElementRounding how;
};

// x as rounding sees it.
template <class X>
__device__ double input(X x) {
  if constexpr (std::is_same_v<X, double>) return moderated(x);
  return widened(x);
}

template <class X, class Out>
__global__ void quantize_kernel(const X* x, Out* out, const __grid_constant__ Views views,
                                const __grid_constant__ Rule rule) {
  const uint64_t seed = rule.how.seed();
  for (int64_t i = grid_thread(); i < views.count; i += grid_threads()) {
    const Offsets at = offsets_of(i, views);
    const double r =
        round_to<double>(input(x[at.x]), rule.fmt, rule.how.rounding, rule.how.threshold(seed, i));
    out[at.out] = narrowed<Out>(r);
  }
}

template <class X, class Out>
void launch_quantize(const void* x, void* out, const Views& views, const Rule& rule,
                     cudaStream_t stream) {
  quantize_kernel<X, Out><<<element_blocks(views.count), kElementThreads, 0, stream>>>(
      static_cast<const X*>(x), static_cast<Out*>(out), views, rule);
  check_launch("quantize");
}

template <class X>
void launch_for(ElementType x_type, ElementType out_type, const void* x, void* out,
                const Views& views, const Rule& rule, cudaStream_t stream) {
  if (out_type == ElementType::kFloat32) {
    launch_quantize<X, float>(x, out, views, rule, stream);
  } else if (out_type == x_type) {
    launch_quantize<X, X>(x, out, views, rule, stream);
  } else {
    throw std::invalid_argument("quantize: out must be float32 or have the dtype of x");
  }
}

}  // namespace

void quantize(const void* x, ElementType x_type, void* out, ElementType out_type,
              const Views& views, const int64_t* quantizer, const Draws& draws, void* stream) {
  const auto kind = static_cast<Kind>(quantizer[0]);
  if (kind != Kind::kFloat && kind != Kind::kFixed) {
    throw std::invalid_argument("quantize: this kernel takes float and fixed formats only");
  }
  if (views.count == 0) return;
  const Rule rule{number_format(quantizer), ElementRounding(quantizer + kFormatInts, draws)};
  const auto queue = static_cast<cudaStream_t>(stream);
  switch (x_type) {
    case ElementType::kFloat32:
      return launch_for<float>(x_type, out_type, x, out, views, rule, queue);
    case ElementType::kFloat16:
      return launch_for<__half>(x_type, out_type, x, out, views, rule, queue);
    case ElementType::kBfloat16:
      return launch_for<__nv_bfloat16>(x_type, out_type, x, out, views, rule, queue);
    case ElementType::kFloat64:
      return launch_for<double>(x_type, out_type, x, out, views, rule, queue);
  }
  throw std::invalid_argument("quantize: unknown dtype");
}

}  // namespace lpk::cuda
