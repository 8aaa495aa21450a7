// The additions between chunks in float32: outer <- round(outer + part), to nearest even.
//
// The float32 sum, rounded to nearest, and the exact sum round to the same value unless the float32
// sum lies half way between two values of the format. Both roundings are monotonic, so only a sum
// that was moved onto such a midpoint can go another way than the exact sum. Sums that lie on a
// midpoint, or outside of what splitting can round, are seen. Then all sums of the same row are
// made odd first. The sum of two floats made odd in float32 has at least two bits more than an
// outer format of at most 21 mantissa bits, so it rounds to the same value as the exact sum (Boldo
// and Melquiond 2008).
#pragma once

#include "float_rules.h"

namespace lpk::cuda {

// Whether no word has these bits under the mask.
LPK_HD bool none_is(const uint32_t (&words)[8], uint32_t mask, uint32_t bits) {
#if defined(__CUDA_ARCH__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1202
  // One instruction for each word makes (word & mask) ^ bits, and whether this and all before are
  // not zero.
  uint32_t none;
  asm("{.reg .pred p, q;\n\t"
      "setp.eq.u32 p, 0, 0;\n\t"
      "setp.eq.u32 q, 0, 0;\n\t"
      "lop3.and.b32 _|p, %1, %9, %10, 0x6a, p;\n\t"
      "lop3.and.b32 _|q, %2, %9, %10, 0x6a, q;\n\t"
      "lop3.and.b32 _|p, %3, %9, %10, 0x6a, p;\n\t"
      "lop3.and.b32 _|q, %4, %9, %10, 0x6a, q;\n\t"
      "lop3.and.b32 _|p, %5, %9, %10, 0x6a, p;\n\t"
      "lop3.and.b32 _|q, %6, %9, %10, 0x6a, q;\n\t"
      "lop3.and.b32 _|p, %7, %9, %10, 0x6a, p;\n\t"
      "lop3.and.b32 _|q, %8, %9, %10, 0x6a, q;\n\t"
      "and.pred p, p, q;\n\t"
      "selp.u32 %0, 1, 0, p;}"
      : "=r"(none)
      : "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(words[4]), "r"(words[5]),
        "r"(words[6]), "r"(words[7]), "r"(mask), "r"(bits));
  return none != 0;
#else
  bool none = true;
  LPK_UNROLL
  for (int n = 0; n < 8; ++n) none &= ((words[n] & mask) ^ bits) != 0;
  return none;
#endif
}

// The least float that is not below x.
LPK_HD float float_at_least(double x) {
  const float y = static_cast<float>(x);
  return static_cast<double>(y) < x ? float_of(word_of(y) + 1) : y;
}

class OuterRule {
 public:
  LPK_HD OuterRule(const Accumulator& acc, Closing closing)
      : way_(outer_way(acc)),
        closing_(closing),
        dropped_(23 - acc.outer.man_bits),
        tie_((1u << dropped_) >> 1),
        below_((1u << dropped_) - 1),
        factor_(float_power(dropped_) + 1.0f),
        magic_(1.5f * float_power(dropped_)),
        limit_(float_at_least(acc.outer.overflow_from)),
        beyond_(static_cast<float>(acc.outer.beyond)),
        min_normal_(static_cast<float>(acc.outer.min_normal)) {
    // Splitting multiplies by 2^dropped + 1.
    const float most = float_power(126 - dropped_);
    reach_ = limit_ < most ? limit_ : most;
  }

  // Adds parts to some sums of a thread.
  template <int kCount>
  LPK_HD void add(float (&outer)[kCount], const float (&part)[kCount]) const {
    if (way_ == OuterWay::kFloat) {
      LPK_UNROLL
      for (int n = 0; n < kCount; ++n) outer[n] = add_rn(outer[n], part[n]);
    } else if (closing_ == Closing::kExact) {
      LPK_UNROLL
      for (int n = 0; n < kCount; ++n) outer[n] = split(add_rn(outer[n], part[n]));
    } else {
      // Outer sums are changed only behind the branch, where they lie.
      float sums[kCount];
      if (added_clearly(outer, part, sums)) {
        LPK_UNROLL
        for (int n = 0; n < kCount; ++n) outer[n] = split(sums[n]);
      } else {
        LPK_UNROLL
        for (int n = 0; n < kCount; ++n) outer[n] = rounded(OddSum::of(1.0f, part[n], outer[n]));
      }
    }
  }

 private:
  // Makes the sums in float32; returns false if one of them must be made odd.
  template <int kCount>
  LPK_HD bool added_clearly(const float (&outer)[kCount], const float (&part)[kCount],
                            float (&sums)[kCount]) const {
    if (closing_ == Closing::kInside) return added<Closing::kInside>(outer, part, sums);
    if (closing_ == Closing::kFloorless) return added<Closing::kFloorless>(outer, part, sums);
    return added<Closing::kAny>(outer, part, sums);
  }
  template <Closing kClosing, int kCount>
  LPK_HD bool added(const float (&outer)[kCount], const float (&part)[kCount],
                    float (&sums)[kCount]) const {
    static_assert(kCount % 8 == 0, "in eights");
    bool clear = true;
    LPK_UNROLL
    for (int n = 0; n < kCount; n += 8) {
      uint32_t words[8];
      LPK_UNROLL
      for (int e = 0; e < 8; ++e) {
        const float s = sums[n + e] = add_rn(outer[n + e], part[n + e]);
        words[e] = word_of(s);
        if (kClosing != Closing::kInside) clear &= fabsf(s) < reach_;
        if (kClosing == Closing::kAny) clear &= fabsf(s) >= min_normal_;
      }
      clear &= none_is(words, below_, tie_);
    }
    return clear;
  }

  LPK_HD float split(float s) const {
    const float wide = mul_rn(s, factor_);
    return add_rn(wide, sub_rn(s, wide));
  }

  LPK_HD float rounded(float s) const { return way_ == OuterWay::kBits ? carried(s) : floored(s); }
  LPK_HD float carried(float s) const {
    const uint32_t word = word_of(s);
    const uint32_t up = (word + (tie_ - 1) + (word >> dropped_ & 1)) & ~below_;
    return fabsf(s) < HUGE_VALF ? float_of(up) : s;
  }
  LPK_HD float floored(float s) const {
    const float binade = float_of(max_word(word_of(s) & 0x7f800000u, word_of(min_normal_)));
    const float shifted = fma_in<Rounding::kNearestEven>(binade, magic_, s);
    const float r = fma_in<Rounding::kNearestEven>(binade, -magic_, shifted);
    const float magnitude = fabsf(s) >= limit_ ? beyond_ : r;
    return float_of((word_of(magnitude) & 0x7fffffffu) | (word_of(s) & 0x80000000u));
  }

  OuterWay way_;
  Closing closing_;
  int dropped_;
  uint32_t tie_, below_;  // half of the last place, and all that is below it
  float factor_;
  float magic_, limit_, beyond_, min_normal_;
  float reach_;  // of splitting
};

}  // namespace lpk::cuda
