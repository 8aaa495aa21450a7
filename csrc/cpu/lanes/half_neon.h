// Half precision in instructions of NEON (FEAT_FP16); included by half_lanes.h.
#pragma once

namespace lpk {
namespace {

using Half = float16x8_t;
constexpr int kHalves = 8;
// Rows and pairs of panels of a group.
constexpr int kHalfRows = 5, kHalfPairs = 1;

LPK_HD Half all_halves(float x) { return vdupq_n_f16(static_cast<float16_t>(x)); }
// A value of A in every lane: `word` holds it twice.
LPK_HD Half half_of_row(uint32_t word) { return vreinterpretq_f16_u32(vdupq_n_u32(word)); }
LPK_HD Half half_fma(Half a, Half b, Half c) { return vfmaq_f16(c, a, b); }
LPK_HD Half half_product(Half a, Half b) { return vmulq_f16(a, b); }
LPK_HD Half half_sum(Half a, Half b) { return vaddq_f16(a, b); }
// NaN stays.
LPK_HD Half half_within(Half x, Half limit) {
  return vmaxq_f16(vnegq_f16(limit), vminq_f16(limit, x));
}
// `next`, but `sum` in the lanes whose bit is set in `marks`.
LPK_HD Half half_kept(uint32_t marks, Half sum, Half next) {
  const uint16x8_t bits{1, 2, 4, 8, 16, 32, 64, 128};
  const uint16x8_t set = vtstq_u16(vdupq_n_u16(static_cast<uint16_t>(marks)), bits);
  return vbslq_f16(set, sum, next);
}

// The lanes of two panels, exact as halves, and back.
LPK_HD void pack_halves(const float* low, const float* high, HalfColumn* to) {
  for (int i = 0; i < kPanel; i += 4) {
    store(to->lane + i, vcvt_f16_f32(vld1q_f32(low + i)));
    store(to->lane + kPanel + i, vcvt_f16_f32(vld1q_f32(high + i)));
  }
}
LPK_HD void unpack_halves(const HalfColumn* from, float* low, float* high) {
  for (int i = 0; i < kPanel; i += 4) {
    vst1q_f32(low + i, vcvt_f32_f16(load<float16x4_t>(from->lane + i)));
    vst1q_f32(high + i, vcvt_f32_f16(load<float16x4_t>(from->lane + kPanel + i)));
  }
}
// The first `count` floats, zeros behind them.
LPK_HD Four::F first_floats(const float* x, int64_t count) {
  if (count >= 4) return load<Four::F>(x);
  Four::F first{};
  for (int64_t i = 0; i < count; ++i) first[i] = x[i];
  return first;
}

}  // namespace
}  // namespace lpk
