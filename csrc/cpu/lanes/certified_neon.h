// Vectors of the certified rules in instructions of NEON; included by certified_lanes.h.
#pragma once

namespace lpk {
namespace {

// 2 draw + 1 of one draw in each lane, moved to bit `place`: `LaneDraws` without rotations.
struct NeonDraws {
  uint32x4_t words, mask, one;
  int32x4_t distance;  // to the left
  int place;

  NeonDraws() = default;
  NeonDraws(const DrawLayout& layout, int at)
      : mask(vdupq_n_u32(layout.mask() << (at + 1))), one(vdupq_n_u32(1u << at)), place(at) {}

  LPK_HD void take(const uint32_t* panel_words) { words = vld1q_u32(panel_words); }
  LPK_HD void from(int bit) { distance = vdupq_n_s32(place + 1 - bit); }
  template <class I>
  LPK_HD I added_to(I bits) const {
    const uint32x4_t odd_doubled = vbslq_u32(mask, vshlq_u32(words, distance), one);
    return bits + (I)odd_doubled;
  }
};

template <class Bits>
struct NeonLanes : Bits {
  using F = typename Bits::F;
  using I = typename Bits::I;
  static constexpr bool kFewRegisters = true;
  static constexpr typename Bits::Word kSign = typename Bits::Word{1} << (Bits::kWordBits - 1);
  // The processor is told the direction, because its instructions take none.
  template <int kMode>
  using Direction = ProcessorRounding<kMode>;
  // The sign bit is flipped: a compiler may leave out the negation of a negation.
  LPK_HD static F negated(F x) { return (F)((I)x ^ Bits::all_words(kSign)); }
  LPK_HD static F with_sign_of(F magnitude, F s) {
    return Bits::either(magnitude, Bits::masked(s, kSign));
  }
  // b where a is NaN, as the rules need it.
  LPK_HD static F max(F a, F b) { return a > b ? a : b; }
  LPK_HD static F min(F a, F b) { return a < b ? a : b; }
  LPK_HD static F at_least(F x, F least) {
    return with_sign_of(max(Bits::masked(x, ~kSign), least), x);
  }
  LPK_HD static F at_most(F x, F most) { return max(min(x, most), -most); }
  LPK_HD static F at_least_zero(F x, F zero, F yes, F no) { return x >= zero ? yes : no; }
};

template <>
struct Floats<4> : NeonLanes<FloatBits<4>> {
  using V = Vec<2>;
  static constexpr int kRows = 4;
  static constexpr int kSpreadRows = 4;
  static constexpr int kRowPanels = 4;
  LPK_HD static F all(double x) { return (F)vdupq_n_f32(static_cast<float>(x)); }
  LPK_HD static F fma(F a, F b, F c) {
    return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
  }
  LPK_HD static F fnma(F a, F b, F c) {
    return (F)vfmsq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
  }
  LPK_HD static F fms(F a, F b, F c) { return fma(a, b, -c); }
  // The same as fms(s, factor, fms(s, factor, s)), for which there is no instruction.
  LPK_HD static F split(F s, F factor) { return fma(s, factor, fnma(s, factor, s)); }
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    const I bits{1, 2, 4, 8};
    return (all_words(static_cast<int32_t>(marks)) & bits) != 0 ? sum : next;
  }
  template <int>
  LPK_HD static F fma_rounded(F a, F b, F c) {
    return fma(a, b, c);
  }
  // In Direction<kDown>: the negative sum rounded down.
  LPK_HD static F fma_up(F a, F b, F c) { return negated(fnma(a, b, negated(c))); }
  // `odd` in the lanes where its last bit is set.
  LPK_HD static F odd_one(F odd, F even) {
    const uint32x4_t is_odd = vtstq_u32((uint32x4_t)odd, vdupq_n_u32(1));
    return (F)vbslq_f32(is_odd, (float32x4_t)odd, (float32x4_t)even);
  }
  LPK_HD static I raised(I x, I n, I bit) {
    return x + n - (I)vtstq_s32((int32x4_t)x, (int32x4_t)bit);
  }
  using Draws = NeonDraws;
  template <bool kSign>
  LPK_HD static I carried(I x, I carry) {
    const I sign = x >> 31;
    return x + (kSign ? carry & sign : carry & ~sign);
  }
  // The larger magnitude; whether one is `limit` or more.
  LPK_HD static F larger(F a, F b) { return max(masked(a, INT32_MAX), masked(b, INT32_MAX)); }
  LPK_HD static bool reaches(F most, F limit) {
    return vmaxvq_u32((uint32x4_t)(masked(most, INT32_MAX) >= limit)) != 0;
  }
  LPK_HD static bool any(F x, Word bits) { return vmaxvq_u32((uint32x4_t)masked(x, bits)) != 0; }
};

template <>
struct Doubles<2> : NeonLanes<DoubleBits<2>> {
  static constexpr int kRows = 2;
  static constexpr int kSpreadRows = 2;
  static constexpr int kRowPanels = 1;
  LPK_HD static F all(double x) { return (F)vdupq_n_f64(x); }
  LPK_HD static F fma(F a, F b, F c) {
    return (F)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
  }
  LPK_HD static F fnma(F a, F b, F c) {
    return (F)vfmsq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
  }
  LPK_HD static F fms(F a, F b, F c) { return fma(a, b, -c); }
  LPK_HD static F split(F s, F factor) { return fma(s, factor, fnma(s, factor, s)); }
  template <int>
  LPK_HD static F fma_rounded(F a, F b, F c) {
    return fma(a, b, c);
  }
  LPK_HD static F fma_up(F a, F b, F c) { return negated(fnma(a, b, negated(c))); }
  LPK_HD static F odd_one(F odd, F even) {
    const uint64x2_t is_odd = vtstq_u64((uint64x2_t)odd, vdupq_n_u64(1));
    return (F)vbslq_f64(is_odd, (float64x2_t)odd, (float64x2_t)even);
  }
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    const I bits{1, 2};
    return (all_words(static_cast<int64_t>(marks)) & bits) != 0 ? sum : next;
  }
  LPK_HD static bool any(F x, Word bits) { return vmaxvq_u32((uint32x4_t)masked(x, bits)) != 0; }
};

}  // namespace
}  // namespace lpk
