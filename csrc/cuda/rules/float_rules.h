// How one product joins a float32 sum under a certificate (plan.h): two to eight instructions.
//
//   splitting    s = a b + sum;  K = 2^(23 - m)
//                m <= 10:  sum = K s - (K s - s), two multiply-adds
//                else:     g = s (K + 1);  sum = g + (s - g)
//   floor        s = a b + sum;  t = the binade of s, no less than min_normal;
//                u = t 1.5 2^(23 - m) + s;  sum = u - t 1.5 2^(23 - m)
//   clipped      then at most max in magnitude
//   made odd     s is the odd one of the sums rounded down and up
//   truncated    s is truncated, and its bits masked
//
// m is man_bits. The left operand is scaled by 2^shift, and so are the sums.
#pragma once

#include "cuda/operands/fetch.h"
#include "cuda/product/plan.h"

namespace lpk::cuda {

struct NearestSum {
  LPK_HD static float of(float a, float b, float sum) {
    return fma_in<Rounding::kNearestEven>(a, b, sum);
  }
};

struct OddSum {
  LPK_HD static float of(float a, float b, float sum) {
    const float down = fma_in<Rounding::kTowardNegative>(a, b, sum);
    const float up = fma_in<Rounding::kTowardPositive>(a, b, sum);
    // The two are equal, or neighbours, one of them odd. An exact zero has the sign of `up`.
    return (word_of(down) & 1) != 0 ? down : up;
  }
};

enum class Limit { kProved, kWatched, kClipped };

// Real: the type of the sums. kMode: how they are rounded. kLosesZeros: a negative sum that becomes
// zero may lose its sign. kSigned: sums may be -0 or NaN, so an absent tap may not be a product of
// zeros.
template <Limit kLimit>
struct RuleOf {
  using Real = float;
  static constexpr Rounding kMode = Rounding::kNearestEven;
  static constexpr bool kWatched = kLimit == Limit::kWatched;
  static constexpr bool kLosesZeros = false;
  static constexpr bool kSigned = false;
  static constexpr Beyond kBeyond = Beyond::kNegativeZero;
  float max;

  LPK_HD RuleOf(const Format& f, int) : max(static_cast<float>(f.max)) {}
  LPK_HD float limited(float x) const {
    if (kLimit != Limit::kClipped) return x;
    return fmaxf(-max, fminf(max, x));
  }
};

template <class Sum, Limit kLimit>
struct SplitRule : RuleOf<kLimit> {
  float factor;

  LPK_HD SplitRule(const Format& f, int shift)
      : RuleOf<kLimit>(f, shift), factor(float_power(23 - f.man_bits) + 1.0f) {}
  LPK_HD float step(float a, float b, float sum) const {
    const float s = Sum::of(a, b, sum);
    const float wide = mul_rn(s, factor);
    return this->limited(add_rn(wide, sub_rn(s, wide)));
  }
};

template <class Sum, Limit kLimit>
struct TwoStepRule : RuleOf<kLimit> {
  float factor;

  LPK_HD TwoStepRule(const Format& f, int shift)
      : RuleOf<kLimit>(f, shift), factor(float_power(23 - f.man_bits)) {}
  LPK_HD float step(float a, float b, float sum) const {
    const float s = Sum::of(a, b, sum);
    const float rest = fma_in<Rounding::kNearestEven>(s, factor, -s);
    return this->limited(fma_in<Rounding::kNearestEven>(s, factor, -rest));
  }
};

template <class Sum, Limit kLimit>
struct FloorRule : RuleOf<kLimit> {
  static constexpr bool kLosesZeros = true;
  float magic;
  uint32_t min_normal;

  LPK_HD FloorRule(const Format& f, int shift)
      : RuleOf<kLimit>(f, shift),
        magic(1.5f * float_power(23 - f.man_bits)),
        min_normal(word_of(float_power(f.emin + shift))) {}
  LPK_HD float step(float a, float b, float sum) const {
    const float s = Sum::of(a, b, sum);
    const float binade = float_of(max_word(word_of(s) & 0x7f800000u, min_normal));
    const float shifted = fma_in<Rounding::kNearestEven>(binade, magic, s);
    return this->limited(fma_in<Rounding::kNearestEven>(binade, -magic, shifted));
  }
};

struct TruncationRule : RuleOf<Limit::kWatched> {
  static constexpr Rounding kMode = Rounding::kTowardZero;
  uint32_t keep;

  LPK_HD TruncationRule(const Format& f, int shift)
      : RuleOf<Limit::kWatched>(f, shift), keep(0xffffffffu << (23 - f.man_bits)) {}
  LPK_HD float step(float a, float b, float sum) const {
    return float_of(word_of(fma_in<Rounding::kTowardZero>(a, b, sum)) & keep);
  }
};

// The arithmetic of float32 itself, in the processor's four modes.
template <Rounding kOf>
struct HardwareRule : RuleOf<Limit::kProved> {
  static constexpr Rounding kMode = kOf;
  static constexpr bool kSigned = true;
  static constexpr Beyond kBeyond =
      kMode == Rounding::kTowardNegative ? Beyond::kZero : Beyond::kNegativeZero;
  LPK_HD HardwareRule(const Format& f, int shift) : RuleOf<Limit::kProved>(f, shift) {}
  LPK_HD float step(float a, float b, float sum) const { return fma_in<kMode>(a, b, sum); }
};

}  // namespace lpk::cuda
