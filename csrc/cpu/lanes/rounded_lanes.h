// Vectors of AVX-512 whose instructions take a rounding of their own: sixteen floats, eight
// doubles.
#pragma once

#include <cmath>

#include "hardware_modes.h"

namespace lpk {
namespace {

// A function's kMode is a mode of the processor.
template <>
struct RoundedLanes<float> {
  using Scalar = float;
  using F = __m512;
  using I = __m512i;
  using Mask = __mmask16;
  static constexpr int kWidth = 16;
  static constexpr int kMantissa = 23;

  LPK_HD static F all(double x) { return _mm512_set1_ps(static_cast<float>(x)); }
  // The smallest of the lanes' values that is not below x.
  static F at_least(double x) {
    const float nearest = static_cast<float>(x);
    return all(nearest < x ? std::nextafter(nearest, HUGE_VALF) : nearest);
  }
  LPK_HD static I word(int64_t x) { return _mm512_set1_epi32(static_cast<int32_t>(x)); }
  LPK_HD static I bits(F x) { return _mm512_castps_si512(x); }
  LPK_HD static F value(I x) { return _mm512_castsi512_ps(x); }
  // Floats that the lanes hold.
  LPK_HD static F load(const float* p) { return _mm512_loadu_ps(p); }
  LPK_HD static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  LPK_HD static F one_operand(const Scalar* p) { return _mm512_set1_ps(*p); }
  LPK_HD static F operands(const Scalar* p) { return _mm512_loadu_ps(p); }

  template <int kMode>
  LPK_HD static F fma(F a, F b, F c) {
    return _mm512_fmadd_round_ps(a, b, c, kMode);
  }
  template <int kMode>
  LPK_HD static F add(F a, F b) {
    return _mm512_add_round_ps(a, b, kMode);
  }
  template <int kMode>
  LPK_HD static F mul(F a, F b) {
    return _mm512_mul_round_ps(a, b, kMode);
  }
  LPK_HD static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  LPK_HD static F max(F a, F b) { return _mm512_max_ps(a, b); }
  LPK_HD static F min(F a, F b) { return _mm512_min_ps(a, b); }
  LPK_HD static F abs(F x) { return _mm512_abs_ps(x); }
  LPK_HD static F masked(F x, int64_t keep) { return _mm512_and_ps(x, value(word(keep))); }
  template <int kCompare>
  LPK_HD static Mask compare(F a, F b) {
    return _mm512_cmp_ps_mask(a, b, kCompare);
  }
  LPK_HD static Mask negative(F x) { return _mm512_movepi32_mask(bits(x)); }
  LPK_HD static Mask any_bit(I x, I of) { return _mm512_test_epi32_mask(x, of); }
  LPK_HD static F select(Mask mask, F yes, F no) { return _mm512_mask_mov_ps(no, mask, yes); }
  LPK_HD static F max_or_zero(Mask mask, F a, F b) { return _mm512_maskz_max_ps(mask, a, b); }
  LPK_HD static I plus(I a, I b) { return _mm512_add_epi32(a, b); }
  // magnitude | (s & sign)
  LPK_HD static F with_sign_of(F magnitude, F s) {
    return value(_mm512_ternarylogic_epi32(bits(magnitude), bits(s), word(INT32_MIN), 0xf8));
  }
  // The last bit of the exponent, exclusive or `flip`.
  LPK_HD static I exponent_parity(I x, I flip) {
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(x, kMantissa), word(1), flip, 0x6a);
  }
};

template <>
struct RoundedLanes<double> {
  using Scalar = double;
  using F = __m512d;
  using I = __m512i;
  using Mask = __mmask8;
  static constexpr int kWidth = 8;
  static constexpr int kMantissa = 52;

  LPK_HD static F all(double x) { return _mm512_set1_pd(x); }
  static F at_least(double x) { return all(x); }
  LPK_HD static I word(int64_t x) { return _mm512_set1_epi64(x); }
  LPK_HD static I bits(F x) { return _mm512_castpd_si512(x); }
  LPK_HD static F value(I x) { return _mm512_castsi512_pd(x); }
  LPK_HD static F load(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  LPK_HD static void store(float* p, F x) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(x)); }
  LPK_HD static F one_operand(const Scalar* p) { return _mm512_set1_pd(*p); }
  LPK_HD static F operands(const Scalar* p) { return _mm512_loadu_pd(p); }

  template <int kMode>
  LPK_HD static F fma(F a, F b, F c) {
    return _mm512_fmadd_round_pd(a, b, c, kMode);
  }
  template <int kMode>
  LPK_HD static F add(F a, F b) {
    return _mm512_add_round_pd(a, b, kMode);
  }
  template <int kMode>
  LPK_HD static F mul(F a, F b) {
    return _mm512_mul_round_pd(a, b, kMode);
  }
  LPK_HD static F fma(F a, F b, F c) { return _mm512_fmadd_pd(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm512_fnmadd_pd(a, b, c); }
  LPK_HD static F max(F a, F b) { return _mm512_max_pd(a, b); }
  LPK_HD static F min(F a, F b) { return _mm512_min_pd(a, b); }
  LPK_HD static F abs(F x) { return _mm512_abs_pd(x); }
  LPK_HD static F masked(F x, int64_t keep) { return _mm512_and_pd(x, value(word(keep))); }
  template <int kCompare>
  LPK_HD static Mask compare(F a, F b) {
    return _mm512_cmp_pd_mask(a, b, kCompare);
  }
  LPK_HD static Mask negative(F x) { return _mm512_movepi64_mask(bits(x)); }
  LPK_HD static Mask any_bit(I x, I of) { return _mm512_test_epi64_mask(x, of); }
  LPK_HD static F select(Mask mask, F yes, F no) { return _mm512_mask_mov_pd(no, mask, yes); }
  LPK_HD static F max_or_zero(Mask mask, F a, F b) { return _mm512_maskz_max_pd(mask, a, b); }
  LPK_HD static I plus(I a, I b) { return _mm512_add_epi64(a, b); }
  LPK_HD static F with_sign_of(F magnitude, F s) {
    return value(_mm512_ternarylogic_epi64(bits(magnitude), bits(s), word(INT64_MIN), 0xf8));
  }
  LPK_HD static I exponent_parity(I x, I flip) {
    return _mm512_ternarylogic_epi64(_mm512_srli_epi64(x, kMantissa), word(1), flip, 0x6a);
  }
};

}  // namespace
}  // namespace lpk
