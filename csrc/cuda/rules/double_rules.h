// How one product joins a sum in double under a certificate (plan.h): by the splitting and the
// floor of float_rules.h, with 53 bits for 24.
#pragma once

#include "float_rules.h"

namespace lpk::cuda {

// Sums are watched, because that is free: adding doubles takes longer than issuing the other
// instructions.
struct DoubleRule {
  using Real = double;
  static constexpr Rounding kMode = Rounding::kNearestEven;
  static constexpr bool kWatched = true;
  static constexpr bool kLosesZeros = false;
  static constexpr bool kSigned = false;
  static constexpr Beyond kBeyond = Beyond::kNegativeZero;
};

struct DoubleSplitRule : DoubleRule {
  double factor;

  LPK_HD DoubleSplitRule(const Format& f, int) : factor(power_of_two(52 - f.man_bits) + 1.0) {}
  LPK_HD double step(double a, double b, double sum) const {
    const double s = fma_rn(a, b, sum);
    const double wide = mul_rn(s, factor);
    return add_rn(wide, sub_rn(s, wide));
  }
};

struct DoubleFloorRule : DoubleRule {
  static constexpr bool kLosesZeros = true;
  double magic;
  uint32_t min_normal;

  LPK_HD DoubleFloorRule(const Format& f, int shift)
      : magic(1.5 * power_of_two(52 - f.man_bits)),
        min_normal(word_of(power_of_two(f.emin + shift))) {}
  LPK_HD double step(double a, double b, double sum) const {
    const double s = fma_rn(a, b, sum);
    const double binade = double_of(max_word(word_of(s) & 0x7ff00000u, min_normal));
    return fma_rn(binade, -magic, fma_rn(binade, magic, s));
  }
};

}  // namespace lpk::cuda
