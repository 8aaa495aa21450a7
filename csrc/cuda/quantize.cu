// out[i] = round_to(x[i], fmt, rounding, draw_i) for float and fixed formats, element by element.
//
// Thread t of the grid handles elements t, t + T, t + 2T, ... in row-major order, T threads in all.
// Every value is widened exactly to double and rounded by common/round.h, so the bits are those of
// every other backend. Stochastic draws are keyed by the row-major index, never by the thread. Not
// supported: Affine and Block formats, which need the tensor's range. Must be compiled with
// -fmad=false, without -use_fast_math and -ftz=true.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "../common/rng.h"
#include "../common/round.h"
#include "quantize.h"

namespace lpk::cuda {
namespace {

constexpr int kThreads = 256;
// Enough blocks to fill any current device several times over; the loop takes the rest.
constexpr int64_t kMaxBlocks = 4096;

struct Rule {
  Format fmt;
  Rounding rounding;
  int32_t random_bits;
  Rng rng;
};

__device__ double widened(float x) { return x; }
__device__ double widened(double x) { return moderated(x); }
__device__ double widened(__half x) { return __half2float(x); }
__device__ double widened(__nv_bfloat16 x) { return __bfloat162float(x); }

// The caller promises that Out holds every value of the format, so these conversions are exact.
template <class Out>
__device__ Out narrowed(double r);
template <>
__device__ float narrowed<float>(double r) {
  return r != r ? __int_as_float(0x7fc00000) : static_cast<float>(r);
}
template <>
__device__ double narrowed<double>(double r) {
  return r != r ? __longlong_as_double(0x7ff8000000000000) : r;
}
template <>
__device__ __half narrowed<__half>(double r) {
  return r != r ? __ushort_as_half(0x7e00) : __float2half_rn(static_cast<float>(r));
}
template <>
__device__ __nv_bfloat16 narrowed<__nv_bfloat16>(double r) {
  return r != r ? __ushort_as_bfloat16(0x7fc0) : __float2bfloat16_rn(static_cast<float>(r));
}

struct Offsets {
  int64_t x;
  int64_t out;
};

__device__ Offsets offsets_of(int64_t i, const Views& views) {
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

template <class X, class Out>
__global__ void quantize_kernel(const X* x, Out* out, Views views, Rule rule, Draws draws) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const uint64_t call_seed =
      draws.device_seed != nullptr ? static_cast<uint64_t>(*draws.device_seed) : draws.seed;
  const uint64_t seed = derive_seed(call_seed, draws.role);
  const bool stochastic = rule.rounding == Rounding::kStochastic;

  for (int64_t i = first; i < views.count; i += step) {
    const Offsets at = offsets_of(i, views);
    double threshold = 0.0;
    if (stochastic) {
      const uint32_t draw =
          random_draw(rule.rng, seed, draws.site, 0, 0, static_cast<uint64_t>(i), rule.random_bits);
      threshold = stochastic_threshold<double>(draw, rule.random_bits);
    }
    const double r = round_to<double>(widened(x[at.x]), rule.fmt, rule.rounding, threshold);
    out[at.out] = narrowed<Out>(r);
  }
}

template <class X, class Out>
void launch_quantize(const void* x, void* out, const Views& views, const Rule& rule,
                     const Draws& draws, cudaStream_t stream) {
  const int64_t blocks = std::min(kMaxBlocks, (views.count + kThreads - 1) / kThreads);
  quantize_kernel<X, Out><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const X*>(x), static_cast<Out*>(out), views, rule, draws);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("quantize: the CUDA launch failed: ") +
                             cudaGetErrorString(error));
  }
}

template <class X>
void launch_for(ElementType x_type, ElementType out_type, const void* x, void* out,
                const Views& views, const Rule& rule, const Draws& draws, cudaStream_t stream) {
  if (out_type == ElementType::kFloat32) {
    launch_quantize<X, float>(x, out, views, rule, draws, stream);
  } else if (out_type == x_type) {
    launch_quantize<X, X>(x, out, views, rule, draws, stream);
  } else {
    throw std::invalid_argument("quantize: out must be float32 or have the dtype of x");
  }
}

}  // namespace

void quantize(const void* x, ElementType x_type, void* out, ElementType out_type,
              const Views& views, const int64_t* quantizer, const Draws& draws, void* stream) {
  const auto kind = static_cast<Kind>(quantizer[0]);
  if (kind != Kind::kFloat && kind != Kind::kFixed) {
    throw std::invalid_argument("quantize: the CUDA kernel takes float and fixed formats only");
  }
  if (views.count == 0) return;
  const Rule rule{number_format(quantizer), static_cast<Rounding>(quantizer[kFormatInts]),
                  static_cast<int32_t>(quantizer[kFormatInts + 1]),
                  static_cast<Rng>(quantizer[kFormatInts + 2])};
  const auto queue = static_cast<cudaStream_t>(stream);
  switch (x_type) {
    case ElementType::kFloat32:
      return launch_for<float>(x_type, out_type, x, out, views, rule, draws, queue);
    case ElementType::kFloat16:
      return launch_for<__half>(x_type, out_type, x, out, views, rule, draws, queue);
    case ElementType::kBfloat16:
      return launch_for<__nv_bfloat16>(x_type, out_type, x, out, views, rule, draws, queue);
    case ElementType::kFloat64:
      return launch_for<double>(x_type, out_type, x, out, views, rule, draws, queue);
  }
  throw std::invalid_argument("quantize: unknown dtype");
}

}  // namespace lpk::cuda
