// out[i] = round_to(x[i], fmt, rounding, draw_i) for float and fixed formats, element by element.
//
// Thread t of the grid handles elements t, t + T, t + 2T, ... in row-major order, where T is the
// number of all threads. Every value is widened exactly to double and rounded by common/round.h, so
// the bits are those of every other backend. Stochastic draws are keyed by the row-major index,
// never by the thread. Affine and block formats are not supported here: on a GPU only Triton rounds
// to them. This file must be compiled with -fmad=false, without -use_fast_math and -ftz=true.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "common/accumulate.h"
#include "quantize.h"

namespace lpk::cuda {

// Checks the last launch: throws std::runtime_error that names `what`.
void check_launch(const char* what);

namespace {

struct Offsets {
  int64_t x;
  int64_t out;
};

__device__ __forceinline__ Offsets offsets_of(int64_t i, const Views& views) {
  // The outermost position needs no division, so one dimension (every contiguous pair) has none.
  Offsets at{0, 0};
  for (int d = views.dims - 1; d >= 0; --d) {
    const int64_t position = d > 0 ? i % views.sizes[d] : i;
    if (d > 0) i /= views.sizes[d];
    at.x += position * views.x_strides[d];
    at.out += position * views.out_strides[d];
  }
  return at;
}

// The caller promises that Out holds every value of the format, so these conversions are exact.
template <class Out>
__device__ __forceinline__ Out narrowed(double r);
template <>
__device__ __forceinline__ float narrowed<float>(double r) {
  return canonical_float(r);
}
template <>
__device__ __forceinline__ double narrowed<double>(double r) {
  return r != r ? __longlong_as_double(0x7ff8000000000000) : r;
}
template <>
__device__ __forceinline__ __half narrowed<__half>(double r) {
  return r != r ? __ushort_as_half(0x7e00) : __float2half_rn(static_cast<float>(r));
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrowed<__nv_bfloat16>(double r) {
  return r != r ? __ushort_as_bfloat16(0x7fc0) : __float2bfloat16_rn(static_cast<float>(r));
}

__device__ __forceinline__ double widened(float x) { return x; }
__device__ __forceinline__ double widened(double x) { return x; }
__device__ __forceinline__ double widened(__half x) { return __half2float(x); }
__device__ __forceinline__ double widened(__nv_bfloat16 x) { return __bfloat162float(x); }

struct Rule {
  Format fmt;
  Rounding rounding;
  int32_t random_bits;
  Rng rng;
  Draws draws;

  __device__ __forceinline__ uint64_t seed() const {
    if (rounding != Rounding::kStochastic) return 0;
    const uint64_t call =
        draws.device_seed != nullptr ? static_cast<uint64_t>(*draws.device_seed) : draws.seed;
    return derive_seed(call, draws.role);
  }
  // The threshold of the element with this row-major index.
  __device__ __forceinline__ double threshold(uint64_t seed, int64_t index) const {
    if (rounding != Rounding::kStochastic) return 0.0;
    const uint32_t draw =
        random_draw(rng, seed, draws.site, 0, 0, static_cast<uint64_t>(index), random_bits);
    return stochastic_threshold<double>(draw, random_bits);
  }
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
  const uint64_t seed = rule.seed();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = first; i < views.count; i += step) {
    const Offsets at = offsets_of(i, views);
    const double r =
        round_to<double>(input(x[at.x]), rule.fmt, rule.rounding, rule.threshold(seed, i));
    out[at.out] = narrowed<Out>(r);
  }
}

template <class X, class Out>
void launch_quantize(const void* x, void* out, const Views& views, const Rule& rule,
                     cudaStream_t stream) {
  // Enough blocks to fill any current device several times over; a loop takes the rest.
  constexpr int64_t kThreads = 256, kMostBlocks = 4096;
  const int64_t blocks = std::min(kMostBlocks, (views.count + kThreads - 1) / kThreads);
  quantize_kernel<X, Out><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
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
  const int64_t* how = quantizer + kFormatInts;
  const Rule rule{number_format(quantizer), static_cast<Rounding>(how[0]),
                  static_cast<int32_t>(how[1]), static_cast<Rng>(how[2]), draws};
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
