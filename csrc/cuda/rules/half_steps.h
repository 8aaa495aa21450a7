// Arithmetic of half precision and bfloat16 in pairs, two to a word. On the device it is the
// processor's own, on the host that of common/.
#pragma once

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "float_steps.h"

namespace lpk::cuda {

// A float that the type holds, as its 16 bits, and back.
template <bool kBfloat16>
LPK_HD uint16_t narrow_word(float x) {
  if (kBfloat16) return static_cast<uint16_t>(word_of(x) >> 16);
#if defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(x));
#else
  const uint32_t word = word_of(x);
  const uint16_t sign = static_cast<uint16_t>(word >> 16 & 0x8000u);
  const float a = std::fabs(x);
  if (!(a < HUGE_VALF)) return static_cast<uint16_t>(sign | (a == a ? 0x7c00u : 0x7e00u));
  // Below the smallest normal value, multiples of 2^-24 are their own codes.
  if (a < 0x1p-14f) return static_cast<uint16_t>(sign | static_cast<uint16_t>(a * 0x1p24f));
  return static_cast<uint16_t>(sign | ((word >> 13 & 0x3ffffu) - (112u << 10)));
#endif
}

template <bool kBfloat16>
LPK_HD float wide_float(uint16_t bits) {
  if (kBfloat16) return float_of(static_cast<uint32_t>(bits) << 16);
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t code = bits & 0x7fffu;
  if (code < 0x400u) return float_of(word_of(static_cast<float>(code) * 0x1p-24f) | sign);
  const uint32_t exponent = code >= 0x7c00u ? 224u << 10 : 112u << 10;
  return float_of((code + exponent) << 13 | sign);
#endif
}

// Two floats rounded to half precision, nearest even, as floats.
LPK_HD void round_to_half(float x, float y, float* rounded) {
#if defined(__CUDA_ARCH__)
  const float2 both = __half22float2(__floats2half2_rn(x, y));
  rounded[0] = both.x, rounded[1] = both.y;
#else
  const int64_t half[] = {0, 5, 10, 15, 0, 1, 0, 0};
  const Format f = float_format(half);
  rounded[0] = static_cast<float>(round_to<double>(x, f, Rounding::kNearestEven, 0.0));
  rounded[1] = static_cast<float>(round_to<double>(y, f, Rounding::kNearestEven, 0.0));
#endif
}

LPK_HD uint32_t pair_of(uint16_t low, uint16_t high) {
  return static_cast<uint32_t>(high) << 16 | low;
}

#if !defined(__CUDA_ARCH__)
template <bool kBfloat16>
inline uint16_t fma_half(uint16_t a, uint16_t b, uint16_t sum) {
  // Zero times a finite number leaves a sum of +0 alone. In tests most of a tile is so, beyond the
  // outputs.
  constexpr uint16_t kInfinity = kBfloat16 ? 0x7f80 : 0x7c00;
  const uint16_t x = a & 0x7fffu, y = b & 0x7fffu;
  if (sum == 0 && ((x == 0 && y < kInfinity) || (y == 0 && x < kInfinity))) return 0;
  const int64_t ints[] = {0, kBfloat16 ? 8 : 5, kBfloat16 ? 7 : 10, kBfloat16 ? 127 : 15, 0, 1, 0,
                          0};
  const double product = static_cast<double>(wide_float<kBfloat16>(a)) * wide_float<kBfloat16>(b);
  const double exact = odd_sum<double>(wide_float<kBfloat16>(sum), product);
  const double rounded = round_to_float_nearest_even<double>(exact, float_format(ints));
  return narrow_word<kBfloat16>(static_cast<float>(rounded));
}
#endif

// sums + (one half of `a`, the upper or the lower) times both halves of b, each rounded once.
template <bool kBfloat16, bool kUpper>
LPK_HD uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t sums) {
#if defined(__CUDA_ARCH__)
  if constexpr (kBfloat16) {
    const auto pair = [](uint32_t x) { return *reinterpret_cast<const __nv_bfloat162*>(&x); };
    const __nv_bfloat162 one = kUpper ? __high2bfloat162(pair(a)) : __low2bfloat162(pair(a));
    const __nv_bfloat162 r = __hfma2(one, pair(b), pair(sums));
    return *reinterpret_cast<const uint32_t*>(&r);
  } else {
    const auto pair = [](uint32_t x) { return *reinterpret_cast<const __half2*>(&x); };
    const __half2 one = kUpper ? __high2half2(pair(a)) : __low2half2(pair(a));
    const __half2 r = __hfma2(one, pair(b), pair(sums));
    return *reinterpret_cast<const uint32_t*>(&r);
  }
#else
  const auto half = [](uint32_t x, bool upper) {
    return static_cast<uint16_t>(upper ? x >> 16 : x);
  };
  return pair_of(fma_half<kBfloat16>(half(a, kUpper), half(b, false), half(sums, false)),
                 fma_half<kBfloat16>(half(a, kUpper), half(b, true), half(sums, true)));
#endif
}

}  // namespace lpk::cuda
