// Rounding of float32 values by arithmetic on their bits: every mode, every format that WordFormat
// fits, one rounding of an exact value.
//
// Stochastic with R bits moves a value away from zero when floor(f 2^(R+1)) + 2 draw + 1 >=
// 2^(R+1). With the draw at the top of a word and a one below it, T = (2 draw + 1) 2^(31-R), and D
// dropped bits, that is the carry out of (dropped bits) + (T >> (32 - D)): what is shifted out of T
// could only matter if the dropped bits had places below it.
#pragma once

#include "cpu/lanes/lanes.h"
#include "word_format.h"

namespace lpk {
namespace {

// kSmall: whether magnitudes below the format's floor need their own rule.
template <class V, Rounding kMode, bool kSmall>
struct WordRule {
  using U = typename V::U;

  WordFormat f;
  uint32_t one;         // 0 if nothing is dropped
  uint32_t mask;        // the dropped bits
  uint32_t half;        // their highest
  uint32_t whole_word;  // 1 if a draw fills its word: 33 bits of the fraction matter

  WordRule(const Format& format, int random_bits)
      : f(format),
        one(f.dropped == 0 ? 0 : 1),
        mask((1u << f.dropped) - 1),
        half((1u << f.dropped) >> 1),
        whole_word(random_bits == 32 ? 1 : 0) {}

  // draw: T of the table above, stochastic only.
  LPK_HD U operator()(U x, U draw) const {
    const U a = x & ~kSignWord;
    if constexpr (kMode == Rounding::kStochastic) {
      // Nothing but an addition from the floor up to max, and for zeros; elsewhere the rule is
      // worth a branch.
      if (all_between<V>(a, kSmall ? f.floor : 0, f.max)) return zeroed(plain(x, draw));
    }
    const U sign = x & kSignWord;
    const U r = unbounded(a, sign, draw);
    const U signed_r = above<V>(r, U{} + f.max) ? overflowed(a, sign) : r | sign;
    return zeroed(above<V>(a, U{} + kInfinityWord) ? U{} + kNanWord : signed_r);
  }

 private:
  // Whether zeros have signs is known before a loop.
  LPK_HD U zeroed(U r) const {
    if (f.one_zero) return r == kSignWord ? U{} : r;
    return r;
  }

  // From the floor up to max, stochastic.
  LPK_HD U plain(U x, U draw) const { return carried(x, draw) & ~mask; }
  LPK_HD U carried(U x, U draw) const { return x + shift_right<V>(draw, U{} + (32 - f.dropped)); }

  LPK_HD U unbounded(U a, U sign, U draw) const {
    const U r = rounded(a, sign, draw);
    if constexpr (kSmall) return above<V>(U{} + f.floor, a) ? rounded_small(a, sign, draw) : r;
    return r;
  }

  LPK_HD U rounded(U a, U sign, U draw) const {
    switch (kMode) {
      case Rounding::kNearestEven:
        return (a + (half - one) + (((a >> f.dropped) ^ f.parity) & one)) & ~mask;
      case Rounding::kNearestAway:
        return (a + half) & ~mask;
      case Rounding::kTowardZero:
        return a & ~mask;
      case Rounding::kTowardPositive:
        return (a + (sign == 0 ? U{} + mask : U{})) & ~mask;
      case Rounding::kTowardNegative:
        return (a + (sign == 0 ? U{} : U{} + mask)) & ~mask;
      case Rounding::kToOdd: {
        // The lowest kept bit, if a dropped one is set and the code is even.
        const U up = ((a & mask) + mask) & (mask + 1) & ~(a ^ (f.parity << f.dropped));
        return (a & ~mask) + up;
      }
      case Rounding::kStochastic:
        return carried(a, draw) & ~mask;
    }
    return a;
  }

  // n 2^q with |x| = (n + fraction) 2^q, or (n + 1) 2^q; codes are n.
  LPK_HD U rounded_small(U a, U sign, U draw) const {
    if constexpr (kMode == Rounding::kNearestEven) {
      return as_words<V>((as_floats<V>(a) + f.magic) - f.magic);
    }
    const U exponent = a >> 23;
    const U significand = exponent == 0 ? a : (a & 0x7fffffu) | 0x800000u;
    const U shift = f.small_shift - (exponent == 0 ? U{} + 1 : exponent);
    const U n = shift_right<V>(significand, shift);
    const auto inexact = shift_left<V>(n, shift) != significand;
    const auto up = moves_away(n, significand, shift, inexact, sign, draw);
    const U m = up ? n + 1 : n;
    return as_words<V>(as_floats<V>(m + bits_of_float(f.magic)) - f.magic);
  }

  template <class Mask>
  LPK_HD auto moves_away(U n, U significand, U shift, Mask inexact, U sign, U draw) const {
    if constexpr (kMode == Rounding::kTowardPositive) {
      return inexact & (sign == 0);
    } else if constexpr (kMode == Rounding::kTowardNegative) {
      return inexact & (sign != 0);
    } else if constexpr (kMode == Rounding::kToOdd) {
      return inexact & ((n & 1) == 0);
    } else if constexpr (kMode == Rounding::kTowardZero) {
      return n != n;
    } else {
      const U fraction = top_of_fraction(significand, shift);
      if constexpr (kMode == Rounding::kNearestAway) return above<V>(U{}, fraction);
      // The carry out of fraction + draw: unsigned fraction > ~draw.
      return above<V>(fraction ^ kSignWord, draw ^ ~kSignWord);
    }
  }

  // floor(fraction 2^32); where a draw has 32 bits, half of floor(fraction 2^33) rounded up: for R
  // = 32 the rule reads (floor(f 2^33) + 1) / 2 + draw >= 2^32.
  LPK_HD U top_of_fraction(U significand, U shift) const {
    const U beyond_word = shift - 32;
    const U low = (shift_right<V>(significand << 1, beyond_word) + whole_word) >> 1;
    return above<V>(shift, U{} + 32) ? low : shift_left<V>(significand, U{} + 32 - shift);
  }

  LPK_HD U overflowed(U a, U sign) const {
    const U beyond = f.beyond | (sign & f.beyond_sign);
    const U max = f.max | sign;
    // No direction stops an infinite value at max.
    const auto infinite = a == kInfinityWord;
    switch (kMode) {
      case Rounding::kTowardZero:
      case Rounding::kToOdd:
        return infinite ? beyond : max;
      case Rounding::kTowardPositive:
        return (infinite | (sign == 0)) ? beyond : max;
      case Rounding::kTowardNegative:
        return (infinite | (sign != 0)) ? beyond : max;
      default:
        return beyond;
    }
  }
};

// nearest_even in half the operations, for formats well inside float32. The rule adds to x the
// binade of x, or of min_normal if that is larger, times 1.5 2^(23-m). The last place of this sum
// is the format's quantum, and its parity is the code's.
template <class V>
struct NearestRule {
  using U = typename V::U;
  using I = typename V::I;

  uint32_t min_normal;
  uint32_t shift;  // from the bits of a binade to the bits of the addend
  uint32_t last;   // the largest magnitude that stays
  uint32_t beyond, beyond_sign;
  uint32_t kept_sign;  // of a zero: without it, the difference below is +0

  NearestRule(const Format& format, int) {
    const WordFormat f(format);
    min_normal = f.floor;
    shift = (f.dropped << 23) + 0x400000u;
    const float from = static_cast<float>(format.overflow_from);
    last = bits_of_float(from) - (from < format.overflow_from ? 0 : 1);
    beyond = f.beyond;
    beyond_sign = f.beyond_sign;
    kept_sign = f.one_zero ? 0 : kSignWord;
  }

  // A sum within its binade, quanta and magic constants that are normal floats.
  static bool fits(const Format& f) {
    if (f.kind != Kind::kFloat || !f.subnormals || f.man_bits < 1 || f.man_bits > 20) return false;
    return f.emin >= -126 && std::ilogb(f.max) + 23 - f.man_bits <= 126;
  }

  LPK_HD U operator()(U x, U) const {
    const U a = x & ~kSignWord;
    const U binade = x & kInfinityWord;
    const U least = U{} + min_normal;
    const auto magic = as_floats<V>((above<V>(binade, least) ? binade : least) + shift);
    const U r = as_words<V>((as_floats<V>(x) + magic) - magic) | (x & kept_sign);
    if (none_above<V>(a, last)) return r;
    const U bounded = above<V>(a, U{} + last) ? beyond | (x & beyond_sign) : r;
    return above<V>(a, U{} + kInfinityWord) ? U{} + kNanWord : bounded;
  }
};

}  // namespace
}  // namespace lpk
