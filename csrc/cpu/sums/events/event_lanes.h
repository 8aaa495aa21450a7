// Comparisons of vectors as one bit a lane, and the lanes beyond a format's range.
#pragma once

#include <cmath>

#include "common/count.h"
#include "cpu/draws/draws.h"

namespace lpk {
namespace {

template <class V>
LPK_HD uint32_t all_lanes() {
  return (1u << V::kWidth) - 1;
}

template <class V>
LPK_HD uint32_t nonzero_lanes(typename V::D x) {
  return all_lanes<V>() & ~equal_lanes<V>(x, typename V::D{});
}

template <class D>
LPK_HD D magnitude(D x) {
  return Lanes<D>::value(Lanes<D>::bits(x) & ~kSignBit);
}

template <class V>
LPK_HD uint32_t finite_lanes(typename V::D x) {
  using L = Lanes<typename V::D>;
  return at_least_lanes<V>(L::all(0x1.fffffffffffffp1023), magnitude(x));
}

// The values that leave a format's range, rounded as if it had no end: all from `above` up and
// `below` down; in mode stochastic, the values that a draw takes over the step beyond the last one.
// A table has no such step: all values beyond its ends leave.
//
// Values are exact or made odd in double: the limits are even there, or the next double after an
// even one, so both compare alike.
struct Range {
  bool stochastic;
  double above, below;
  double max, lowest;
  double inverse, low_inverse;  // 1 / the step at the ends

  Range(const Format& f, Rounding mode)
      : stochastic(mode == Rounding::kStochastic), max(f.max), lowest(low_end(f)) {
    if (f.kind == Kind::kTable) {
      stochastic = false;
      above = std::nextafter(max, HUGE_VAL);
      below = std::nextafter(lowest, -HUGE_VAL);
      return;
    }
    const bool fixed = f.kind == Kind::kFixed;
    const double step = fixed ? f.quantum : f.unit * power_of_two(std::ilogb(f.max));
    // Without a sign, the least value lies as far from 0 as the one that would be below it.
    const double low_step = !f.is_unsigned ? step : f.subnormals ? f.quantum : f.min_normal;
    inverse = 1.0 / step;
    low_inverse = 1.0 / low_step;
    bool odd_max, odd_lowest;
    if (fixed) {
      odd_max = std::fmod(f.max / step, 2.0) != 0;
      odd_lowest = std::fmod(f.lowest / step, 2.0) != 0;
    } else {
      odd_max = f.overflow_from == f.max + step / 2;
      odd_lowest = odd_max && !f.is_unsigned;
    }
    above = limit(max, step, odd_max, mode, mode == Rounding::kTowardPositive);
    below = -limit(-lowest, low_step, odd_lowest, mode, mode == Rounding::kTowardNegative);
  }

  template <class V>
  LPK_HD uint32_t left_by(typename V::D x, typename V::D threshold) const {
    using D = typename V::D;
    using L = Lanes<D>;
    uint32_t out = at_least_lanes<V>(x, L::all(above)) | at_least_lanes<V>(L::all(below), x);
    if (stochastic) {
      // Positive excess only: a threshold is above zero.
      out |= at_least_lanes<V>((x - max) * inverse, threshold) |
             at_least_lanes<V>((lowest - x) * low_inverse, threshold);
    }
    return out & finite_lanes<V>(x);
  }

 private:
  // The first magnitude that leaves; `end` is the last value, `outward` whether the mode goes
  // there.
  static double limit(double end, double step, bool odd, Rounding mode, bool outward) {
    const double beyond_end = std::nextafter(end, HUGE_VAL);
    const double tie = end + step / 2;
    switch (mode) {
      case Rounding::kNearestEven:
        return odd ? tie : std::nextafter(tie, HUGE_VAL);
      case Rounding::kNearestAway:
        return tie;
      case Rounding::kToOdd:
        return odd ? end + step : beyond_end;
      case Rounding::kTowardPositive:
      case Rounding::kTowardNegative:
        return outward ? beyond_end : end + step;
      default:
        return end + step;
    }
  }
};

}  // namespace
}  // namespace lpk
