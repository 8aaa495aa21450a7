// Elements of two strided views of one shape, and rounded values in the type of their tensor.
#pragma once

#include "elements.h"

namespace lpk::cuda {

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

}  // namespace lpk::cuda
