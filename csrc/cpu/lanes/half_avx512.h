// Half precision in instructions of AVX512-FP16; included by half_lanes.h.
#pragma once

namespace lpk {
namespace {

using Half = __m512h;
constexpr int kHalves = 32;
// Rows and pairs of panels of a group.
constexpr int kHalfRows = 12, kHalfPairs = 2;
// The mode of the sums is the processor's while they are made (ProcessorMode).
constexpr int kModeOfSums = _MM_FROUND_CUR_DIRECTION;

LPK_HD Half all_halves(float x) { return _mm512_set1_ph(static_cast<_Float16>(x)); }
// A value of A in every lane: `word` holds it twice.
LPK_HD Half half_of_row(uint32_t word) {
  return _mm512_castsi512_ph(_mm512_set1_epi32(static_cast<int>(word)));
}
LPK_HD Half half_fma(Half a, Half b, Half c) { return _mm512_fmadd_round_ph(a, b, c, kModeOfSums); }
LPK_HD Half half_product(Half a, Half b) { return _mm512_mul_round_ph(a, b, kModeOfSums); }
LPK_HD Half half_sum(Half a, Half b) { return _mm512_add_round_ph(a, b, kModeOfSums); }
// Given a NaN, the instruction leaves its second operand.
LPK_HD Half half_within(Half x, Half limit) {
  return _mm512_max_ph(-limit, _mm512_min_ph(limit, x));
}
// `next`, but `sum` in the lanes whose bit is set in `marks`.
LPK_HD Half half_kept(uint32_t marks, Half sum, Half next) {
  return _mm512_mask_blend_ph(static_cast<__mmask32>(marks), next, sum);
}

// The lanes of two panels, exact as halves, and back.
LPK_HD void pack_halves(const float* low, const float* high, HalfColumn* to) {
  const __m256i l = _mm512_cvtps_ph(_mm512_loadu_ps(low), _MM_FROUND_NO_EXC);
  const __m256i h = _mm512_cvtps_ph(_mm512_loadu_ps(high), _MM_FROUND_NO_EXC);
  store(to, _mm512_inserti64x4(_mm512_castsi256_si512(l), h, 1));
}
LPK_HD void unpack_halves(const HalfColumn* from, float* low, float* high) {
  const __m512i bits = load<__m512i>(from);
  _mm512_storeu_ps(low, _mm512_cvtph_ps(_mm512_castsi512_si256(bits)));
  _mm512_storeu_ps(high, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1)));
}
// The first `count` floats, zeros behind them.
LPK_HD Sixteen::F first_floats(const float* x, int64_t count) {
  const uint32_t mask = count < 16 ? (1u << count) - 1 : 0xffff;
  return (Sixteen::F)_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x);
}

}  // namespace
}  // namespace lpk
