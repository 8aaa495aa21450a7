// Vectors of the certified rules in instructions of AVX-512; included by certified_lanes.h.
#pragma once

namespace lpk {
namespace {

template <>
struct Floats<16> : FloatBits<16> {
  using V = Vec<8>;
  static constexpr bool kFewRegisters = false;
  static constexpr int kRows = 12;
  // The nine taps of a kernel are one group.
  static constexpr int kSpreadRows = 9;
  // Keeps a loaded value in a register: the compiler would load it for every use.
#if defined(LPK_SOFTWARE_AVX512)
  LPK_HD static void hold(F*) {}
#else
  LPK_HD static void hold(F* x) { asm("" : "+v"(*x)); }
#endif
  // How many panels are multiplied with one row at a time.
  static constexpr int kRowPanels = 8;
  LPK_HD static F all(double x) { return _mm512_set1_ps(static_cast<float>(x)); }
  LPK_HD static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  LPK_HD static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  LPK_HD static F split(F s, F factor) { return fms(s, factor, fms(s, factor, s)); }
  LPK_HD static F max(F a, F b) { return _mm512_max_ps(a, b); }
  LPK_HD static F min(F a, F b) { return _mm512_min_ps(a, b); }
  LPK_HD static F with_sign_of(F magnitude, F s) {
    return RoundedLanes<float>::with_sign_of(magnitude, s);
  }
  // max(|x|, least) with the sign of x.
  LPK_HD static F at_least(F x, F least) { return _mm512_range_ps(x, least, 0x3); }
  // min(|x|, most) with the sign of x.
  LPK_HD static F at_most(F x, F most) { return _mm512_range_ps(x, most, 0x2); }
  // `next`, but `sum` in the lanes whose bit is set in `marks`.
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    return _mm512_mask_mov_ps(next, static_cast<__mmask16>(marks), sum);
  }
  // Rounded so, inside what Direction<kMode> says.
  template <int kMode>
  using Direction = UsualRounding;
  template <int kMode>
  LPK_HD static F fma_rounded(F a, F b, F c) {
    return _mm512_fmadd_round_ps(a, b, c, kMode);
  }
  // In Direction<kDown>.
  LPK_HD static F fma_up(F a, F b, F c) { return fma_rounded<kUp>(a, b, c); }
  // `odd` in the lanes where its last bit is set.
  LPK_HD static F odd_one(F odd, F even) {
    return _mm512_mask_mov_ps(even, _mm512_test_epi32_mask((__m512i)odd, _mm512_set1_epi32(1)),
                              odd);
  }
  // `yes` in the lanes where x >= zero.
  LPK_HD static F at_least_zero(F x, F zero, F yes, F no) {
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(x, zero, _CMP_GE_OQ), yes);
  }
  using Draws = LaneDraws<RoundedLanes<float>>;
  // x + carry in the lanes with a sign, or without.
  template <bool kSign>
  LPK_HD static I carried(I x, I carry) {
    const __m512i bits = (__m512i)x;
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    const __mmask16 lanes =
        kSign ? _mm512_test_epi32_mask(bits, sign) : _mm512_testn_epi32_mask(bits, sign);
    return (I)_mm512_mask_add_epi32(bits, lanes, bits, (__m512i)carry);
  }
  LPK_HD static I raised(I x, I n, I bit) {
    const __mmask16 lanes = _mm512_test_epi32_mask((__m512i)x, (__m512i)bit);
    const __m512i sum = _mm512_add_epi32((__m512i)x, (__m512i)n);
    return (I)_mm512_mask_add_epi32(sum, lanes, sum, _mm512_set1_epi32(1));
  }
  // The larger magnitude; whether one is `limit` or more.
  LPK_HD static F larger(F a, F b) { return at_least(a, b); }
  LPK_HD static bool reaches(F most, F limit) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(most), limit, _CMP_GE_OQ) != 0;
  }
  LPK_HD static bool any(F x, Word bits) {
    return _mm512_test_epi32_mask(_mm512_castps_si512(x), _mm512_set1_epi32(bits)) != 0;
  }
};

template <>
struct Doubles<8> : DoubleBits<8> {
  static constexpr bool kFewRegisters = false;
  static constexpr int kRows = 8;
  static constexpr int kSpreadRows = 9;
  static constexpr int kRowPanels = 4;
  LPK_HD static F all(double x) { return _mm512_set1_pd(x); }
  LPK_HD static F fma(F a, F b, F c) { return _mm512_fmadd_pd(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm512_fnmadd_pd(a, b, c); }
  LPK_HD static F fms(F a, F b, F c) { return _mm512_fmsub_pd(a, b, c); }
  LPK_HD static F split(F s, F factor) { return fms(s, factor, fms(s, factor, s)); }
  template <int kMode>
  using Direction = UsualRounding;
  template <int kMode>
  LPK_HD static F fma_rounded(F a, F b, F c) {
    return _mm512_fmadd_round_pd(a, b, c, kMode);
  }
  LPK_HD static F fma_up(F a, F b, F c) { return fma_rounded<kUp>(a, b, c); }
  LPK_HD static F odd_one(F odd, F even) {
    return _mm512_mask_mov_pd(even, _mm512_test_epi64_mask((__m512i)odd, _mm512_set1_epi64(1)),
                              odd);
  }
  LPK_HD static F at_least_zero(F x, F zero, F yes, F no) {
    return _mm512_mask_mov_pd(no, _mm512_cmp_pd_mask(x, zero, _CMP_GE_OQ), yes);
  }
  LPK_HD static F max(F a, F b) { return _mm512_max_pd(a, b); }
  LPK_HD static F min(F a, F b) { return _mm512_min_pd(a, b); }
  LPK_HD static F with_sign_of(F magnitude, F s) {
    return RoundedLanes<double>::with_sign_of(magnitude, s);
  }
  LPK_HD static F at_least(F x, F least) { return _mm512_range_pd(x, least, 0x3); }
  LPK_HD static F at_most(F x, F most) { return _mm512_range_pd(x, most, 0x2); }
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    return _mm512_mask_mov_pd(next, static_cast<__mmask8>(marks), sum);
  }
  LPK_HD static bool any(F x, Word bits) {
    return _mm512_test_epi64_mask(_mm512_castpd_si512(x), _mm512_set1_epi64(bits)) != 0;
  }
};

}  // namespace
}  // namespace lpk
