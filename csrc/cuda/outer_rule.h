// The additions between chunks in float32: outer <- round(outer + part), to nearest even.
//
// The sum of two floats made odd in float32 has at least two bits more than an outer format of at
// most 21 mantissa bits, so that rounding it gives what rounding the exact sum does (Boldo and
// Melquiond 2008).
#pragma once

#include "float_rules.h"

namespace lpk::cuda {

// The least float that is not below x.
LPK_HD float float_at_least(double x) {
  const float y = static_cast<float>(x);
  return static_cast<double>(y) < x ? float_of(word_of(y) + 1) : y;
}

class OuterRule {
 public:
  // inside: of a plan.
  LPK_HD OuterRule(const Accumulator& acc, bool inside)
      : way_(outer_way(acc)),
        inside_(inside),
        factor_(float_power(23 - acc.outer.man_bits) + 1.0f),
        magic_(1.5f * float_power(23 - acc.outer.man_bits)),
        limit_(float_at_least(acc.outer.overflow_from)),
        beyond_(static_cast<float>(acc.outer.beyond)),
        min_normal_(word_of(static_cast<float>(acc.outer.min_normal))),
        dropped_(23 - acc.outer.man_bits) {}

  // Of some sums of a thread.
  template <int kCount>
  LPK_HD void add(float (&outer)[kCount], const float (&part)[kCount]) const {
    if (way_ == OuterWay::kFloat) {
      LPK_UNROLL
      for (int n = 0; n < kCount; ++n) outer[n] = add_rn(outer[n], part[n]);
    } else if (inside_) {
      LPK_UNROLL
      for (int n = 0; n < kCount; ++n) outer[n] = split(OddSum::of(1.0f, part[n], outer[n]));
    } else if (way_ == OuterWay::kBits) {
      LPK_UNROLL
      for (int n = 0; n < kCount; ++n) outer[n] = carried(OddSum::of(1.0f, part[n], outer[n]));
    } else {
      LPK_UNROLL
      for (int n = 0; n < kCount; ++n) outer[n] = rounded(OddSum::of(1.0f, part[n], outer[n]));
    }
  }

 private:
  LPK_HD float split(float s) const {
    const float wide = mul_rn(s, factor_);
    return add_rn(wide, sub_rn(s, wide));
  }

  LPK_HD float carried(float s) const {
    const uint32_t word = word_of(s);
    const uint32_t half = (1u << (dropped_ - 1)) - 1;
    const uint32_t up = (word + half + (word >> dropped_ & 1)) & (0xffffffffu << dropped_);
    return fabsf(s) < HUGE_VALF ? float_of(up) : s;
  }

  LPK_HD float rounded(float s) const {
    const float binade = float_of(max_word(word_of(s) & 0x7f800000u, min_normal_));
    const float shifted = fma_in<Rounding::kNearestEven>(binade, magic_, s);
    const float r = fma_in<Rounding::kNearestEven>(binade, -magic_, shifted);
    const float magnitude = fabsf(s) >= limit_ ? beyond_ : r;
    return float_of((word_of(magnitude) & 0x7fffffffu) | (word_of(s) & 0x80000000u));
  }

  OuterWay way_;
  bool inside_;
  float factor_;
  float magic_, limit_, beyond_;
  uint32_t min_normal_;
  int dropped_;
};

}  // namespace lpk::cuda
