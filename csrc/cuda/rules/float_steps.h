// Single float32 instructions by name, and what stands for them on the host. None is ever
// contracted.
#pragma once

#include <cmath>
#include <cstring>

#include "common/accumulate.h"

namespace lpk::cuda {

LPK_HD uint32_t word_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t word;
  std::memcpy(&word, &x, sizeof word);
  return word;
#endif
}
LPK_HD float float_of(uint32_t word) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(word);
#else
  float x;
  std::memcpy(&x, &word, sizeof x);
  return x;
#endif
}

// The upper half of a double: sign, exponent and the leading bits.
LPK_HD uint32_t word_of(double x) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__double2hiint(x));
#else
  return static_cast<uint32_t>(Lanes<double>::bits(x) >> 32);
#endif
}
LPK_HD double double_of(uint32_t word) {
#if defined(__CUDA_ARCH__)
  return __hiloint2double(static_cast<int>(word), 0);
#else
  return Lanes<double>::value(static_cast<int64_t>(static_cast<uint64_t>(word) << 32));
#endif
}

// 2^exponent, a normal float: -126 <= exponent <= 127.
LPK_HD float float_power(int exponent) {
  return float_of(static_cast<uint32_t>(exponent + 127) << 23);
}

template <class Real>
LPK_HD Real power(int exponent) {
  if constexpr (sizeof(Real) == 4) return float_power(exponent);
  return static_cast<Real>(power_of_two(exponent));
}

LPK_HD float mul_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
LPK_HD float add_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
LPK_HD float sub_rn(float a, float b) { return add_rn(a, -b); }

LPK_HD double mul_rn(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
LPK_HD double add_rn(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
LPK_HD double sub_rn(double a, double b) { return add_rn(a, -b); }
LPK_HD double fma_rn(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

#if !defined(__CUDA_ARCH__)
// a b + c rounded in the direction of `toward`, from the sum made odd in double.
inline float directed_fma(float a, float b, float c, float toward) {
  const double product = static_cast<double>(a) * b;
  double exact = odd_sum<double>(product, c);
  if (toward < 0) exact = with_zero_sign<double>(exact, product, c);
  const float nearest = static_cast<float>(exact);
  if (toward == 0) {
    const bool beyond = std::fabs(static_cast<double>(nearest)) > std::fabs(exact);
    return beyond ? std::nextafter(nearest, 0.0f) : nearest;
  }
  const bool short_of = toward > 0 ? nearest < exact : nearest > exact;
  return short_of ? std::nextafter(nearest, toward) : nearest;
}
#endif

template <Rounding kMode>
LPK_HD float fma_in(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  if (kMode == Rounding::kTowardZero) return __fmaf_rz(a, b, c);
  if (kMode == Rounding::kTowardPositive) return __fmaf_ru(a, b, c);
  if (kMode == Rounding::kTowardNegative) return __fmaf_rd(a, b, c);
  return __fmaf_rn(a, b, c);
#else
  if (kMode == Rounding::kTowardZero) return directed_fma(a, b, c, 0.0f);
  if (kMode == Rounding::kTowardPositive) return directed_fma(a, b, c, HUGE_VALF);
  if (kMode == Rounding::kTowardNegative) return directed_fma(a, b, c, -HUGE_VALF);
  return std::fma(a, b, c);
#endif
}

LPK_HD uint32_t max_word(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Adds to c the 16-bit field of `fields` that `factors` names, times the byte of `factors` there.
// The instruction is dp2a, with one of the two lowest bytes set.
LPK_HD uint32_t field_added(uint32_t fields, uint32_t factors, uint32_t c) {
#if defined(__CUDA_ARCH__)
  return __dp2a_lo(fields, factors, c);
#else
  return c + (fields & 0xffffu) * (factors & 0xffu) + (fields >> 16) * (factors >> 8 & 0xffu);
#endif
}

}  // namespace lpk::cuda
