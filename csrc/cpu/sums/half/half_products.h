// The products of sums in half precision: exact products, each added by one multiply-add, and
// products that are rounded before they are added.
#pragma once

#include "cpu/lanes/lanes.h"
#include "half_sums.h"

namespace lpk {
namespace {

using Half = __m512h;

inline Half all_halves(float x) { return _mm512_set1_ph(static_cast<_Float16>(x)); }

// A value of A in every lane: `word` holds it twice.
LPK_HD Half half_of_row(uint32_t word) {
  return _mm512_castsi512_ph(_mm512_set1_epi32(static_cast<int>(word)));
}

// Given a NaN, the instruction leaves its second operand.
LPK_HD Half half_within(Half x, Half limit) {
  return _mm512_max_ph(-limit, _mm512_min_ph(limit, x));
}

// The mode of the sums is the processor's while they are made (ProcessorMode).
constexpr int kModeOfSums = _MM_FROUND_CUR_DIRECTION;

// Each of these: acc + a product, rounded in the mode of the sums. `row` has the kWords words that
// words_of makes of a value of A, b is B as packed.
struct FusedHalfProduct {
  static constexpr int kWords = 1;
  explicit FusedHalfProduct(const HalfSums&, const Format&) {}
  void words_of(__m512 a, __m512 (&words)[kWords]) const { words[0] = a; }
  LPK_HD Half sum(const uint32_t* row, Half b, Half acc) const {
    return _mm512_fmadd_round_ph(half_of_row(row[0]), b, acc, kModeOfSums);
  }
};

// Products rounded to e5m10, in the mode of the sums.
template <bool kSaturates>
struct HalfProduct : FusedHalfProduct {
  Half limit;
  HalfProduct(const HalfSums& sums, const Format& f)
      : FusedHalfProduct(sums, f), limit(all_halves(65504.0f)) {}
  LPK_HD Half sum(const uint32_t* row, Half b, Half acc) const {
    Half p = _mm512_mul_round_ph(half_of_row(row[0]), b, kModeOfSums);
    if (kSaturates) p = half_within(p, limit);
    return _mm512_add_round_ph(p, acc, kModeOfSums);
  }
};

// Products rounded to nearest in a shorter format (the proof is in half_sums.h):
//   t = fl((K a - a) b),  h = K a b - t
// or with kFloor, where the last place of the format's subnormals is 2^-24
//   t = fl(K a b),  h = t - fl(t - a b)
// The sign of a product that is or becomes zero is lost: no sum may be -0.
template <bool kFloor, bool kSaturates>
struct SplitHalfProduct {
  static constexpr int kWords = 2;
  __m512 factor, binades;
  Half unit, limit;

  SplitHalfProduct(const HalfSums& sums, const Format& f)
      : factor(_mm512_set1_ps(std::ldexp(1.0f, sums.factor))),
        binades(_mm512_castsi512_ps(_mm512_set1_epi32(sums.adds_binade ? -0x800000 : 0))),
        unit(all_halves(std::ldexp(1.0f, -sums.scale()))),
        limit(all_halves(static_cast<float>(std::ldexp(f.max, sums.scale())))) {}
  void words_of(__m512 a, __m512 (&words)[kWords]) const {
    const __m512 wide = _mm512_fmadd_ps(a, factor, _mm512_and_ps(a, binades));
    words[0] = wide;
    words[1] = kFloor ? a : wide - a;
  }
  LPK_HD Half sum(const uint32_t* row, Half b, Half acc) const {
    const Half wide = half_of_row(row[0]);
    const Half other = half_of_row(row[1]);
    Half h;
    if (kFloor) {
      const Half t = _mm512_mul_round_ph(wide, b, kNearestMode);
      h = _mm512_sub_round_ph(t, _mm512_fnmadd_round_ph(other, b, t, kNearestMode), kNearestMode);
    } else {
      const Half t = _mm512_mul_round_ph(other, b, kNearestMode);
      h = _mm512_fmsub_round_ph(wide, b, t, kNearestMode);
    }
    if (kSaturates) h = half_within(h, limit);
    return _mm512_fmadd_round_ph(h, unit, acc, kModeOfSums);
  }
};

}  // namespace
}  // namespace lpk
