// The products of sums in half precision: exact products, each added by one multiply-add, and
// products that are rounded before they are added.
#pragma once

#include "cpu/lanes/half_lanes.h"
#include "half_sums.h"

namespace lpk {
namespace {

// Words of A, one value of A in each, before they are rounded.
using RowLanes = Bits32<Isa::kWords>;
using RowFloats = RowLanes::F;

// Each of these: acc + a product, rounded in the mode of the sums. `row` has the kWords words that
// words_of makes of a value of A, b is B as packed.
struct FusedHalfProduct {
  static constexpr int kWords = 1;
  explicit FusedHalfProduct(const HalfSums&, const Format&) {}
  void words_of(RowFloats a, RowFloats (&words)[kWords]) const { words[0] = a; }
  LPK_HD Half sum(const uint32_t* row, Half b, Half acc) const {
    return half_fma(half_of_row(row[0]), b, acc);
  }
};

// Products rounded to e5m10, in the mode of the sums.
template <bool kSaturates>
struct HalfProduct : FusedHalfProduct {
  Half limit;
  HalfProduct(const HalfSums& sums, const Format& f)
      : FusedHalfProduct(sums, f), limit(all_halves(65504.0f)) {}
  LPK_HD Half sum(const uint32_t* row, Half b, Half acc) const {
    Half p = half_product(half_of_row(row[0]), b);
    if (kSaturates) p = half_within(p, limit);
    return half_sum(p, acc);
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
  float factor;
  uint32_t binades;
  Half unit, limit;

  SplitHalfProduct(const HalfSums& sums, const Format& f)
      : factor(std::ldexp(1.0f, sums.factor)),
        binades(sums.adds_binade ? 0xff800000u : 0),
        unit(all_halves(std::ldexp(1.0f, -sums.scale()))),
        limit(all_halves(static_cast<float>(std::ldexp(f.max, sums.scale())))) {}
  void words_of(RowFloats a, RowFloats (&words)[kWords]) const {
    const RowFloats binade = as_floats<RowLanes>(as_words<RowLanes>(a) & binades);
    const RowFloats wide =
        (RowFloats)Isa::fma((Isa::Floats)a, Isa::all(factor), (Isa::Floats)binade);
    words[0] = wide;
    words[1] = kFloor ? a : wide - a;
  }
  LPK_HD Half sum(const uint32_t* row, Half b, Half acc) const {
    const Half wide = half_of_row(row[0]);
    const Half other = half_of_row(row[1]);
    Half h;
    if (kFloor) {
      const Half t = nearest_product(wide, b);
      h = nearest_difference(t, nearest_fnma(other, b, t));
    } else {
      const Half t = nearest_product(other, b);
      h = nearest_fms(wide, b, t);
    }
    if (kSaturates) h = half_within(h, limit);
    return half_fma(h, unit, acc);
  }
};

}  // namespace
}  // namespace lpk
