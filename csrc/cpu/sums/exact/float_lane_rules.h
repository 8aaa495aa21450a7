// Rounding in lanes of float32 or double, AVX-512, each mode with a sum brought to the lanes'
// precision in a way that cannot round twice.
//
//   mode                      the sum in 24 or 53 bits      then
//   nearest_even              made odd (directed bracket)   one nearest rounding
//   to_odd                    made odd                      made odd again
//   toward_positive/negative  rounded that way              rounded that way again
//   toward_zero               truncated                     truncated again
//   nearest_away              truncated                     + half a quantum, truncated
//   stochastic                truncated                     + (2 draw + 1) / 2^(R+1) quanta,
//                                                           truncated
//
// A rule rounds by adding and taking away a power of two so large that the format's quantum is the
// last place of the sum (subnormals included), or, for formats with float32's own exponents, by
// arithmetic on the bits.
#pragma once

#include "cpu/lanes/lanes.h"

namespace lpk {
namespace {

// 2 draw + 1 of one draw in each lane, from the words that hold it, moved left to bit `place`.
template <class L>
struct LaneDraws;

template <>
struct LaneDraws<RoundedLanes<float>> {
  __m512i words;
  __m512i rotation;
  __m512i mask;
  __m512i one;
  int place;

  LaneDraws() = default;
  LaneDraws(const DrawLayout& layout, int at)
      : mask(_mm512_set1_epi32(static_cast<int>(layout.mask() << (at + 1)))),
        one(_mm512_set1_epi32(1 << at)),
        place(at) {}

  LPK_HD void take(const uint32_t* panel_words) { words = _mm512_loadu_si512(panel_words); }
  // The draw begins at this bit of its word.
  LPK_HD void from(int bit) { rotation = _mm512_set1_epi32((bit - place - 1) & 31); }
  LPK_HD __m512i odd_doubled() const {
    // (rotated words & mask) | one
    return _mm512_ternarylogic_epi32(_mm512_rorv_epi32(words, rotation), mask, one, 0xea);
  }
  LPK_HD __m512i added_to(__m512i bits) const { return _mm512_add_epi32(bits, odd_doubled()); }
  LPK_HD __m512 number() const { return _mm512_cvtepi32_ps(odd_doubled()); }
};

template <>
struct LaneDraws<RoundedLanes<double>> {
  __m256i words;
  __m256i rotation;
  __m256i mask;
  __m256i one;

  LaneDraws() = default;
  LaneDraws(const DrawLayout& layout, int)
      : mask(_mm256_set1_epi32(static_cast<int>(layout.mask() << 1))), one(_mm256_set1_epi32(1)) {}

  LPK_HD void take(const uint32_t* panel_words) {
    words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel_words));
  }
  LPK_HD void from(int bit) { rotation = _mm256_set1_epi32((bit - 1) & 31); }
  LPK_HD __m512d number() const {
    return _mm512_cvtepi32_pd(
        _mm256_ternarylogic_epi32(_mm256_rorv_epi32(words, rotation), mask, one, 0xea));
  }
};

// The common part of most rules.
struct LaneRule {
  // Draws come as numbers 2 draw + 1.
  static int draw_place(const Format&, int) { return 0; }
  // Results below min_normal are 0 or min_normal.
  static constexpr bool kFlushes = false;
  static constexpr bool kRare = false;
};

// Rounds sums to a format with an exponent range well inside that of the lanes. The sums may be
// scaled by 2^shift. Without subnormals the quantum below min_normal is min_normal itself.
template <class Lanes, Rounding kRule, bool kSubnormals = true>
struct NarrowRule : LaneRule {
  static constexpr bool kFlushes = !kSubnormals;
  static constexpr bool kRare = kFlushes && Lanes::kMantissa == 52;
  using L = Lanes;
  using F = typename L::F;
  using Mask = typename L::Mask;
  static constexpr Rounding kMode = kRule;
  static constexpr bool kSigned =
      kMode == Rounding::kTowardPositive || kMode == Rounding::kTowardNegative;
  F min_normal, magic, limit, max, beyond, added_unit;
  F flushed_binade;  // the one whose quantum is min_normal

  NarrowRule(const Format& f, int random_bits, int shift = 0)
      : min_normal(scaled(f.min_normal, shift)),
        // Half a power of two more where signed sums must not leave its binade.
        magic(L::all(std::ldexp(kSigned || kMode == Rounding::kNearestEven ? 1.5 : 1.0,
                                L::kMantissa - f.man_bits))),
        limit(kMode == Rounding::kNearestEven
                  ? L::at_least(std::ldexp(f.overflow_from, shift))
                  : scaled(std::ldexp(1.0, std::ilogb(f.max) + 1), shift)),
        max(scaled(f.max, shift)),
        beyond(scaled(f.beyond, shift)),
        added_unit(L::all(
            std::ldexp(1.0, -f.man_bits - 1 - (kMode == Rounding::kStochastic ? random_bits : 0)))),
        flushed_binade(scaled(std::ldexp(f.min_normal, f.man_bits), shift)) {}

  // The magic constant of the binade beyond the largest must be finite, and quanta, half quanta and
  // draws must not fall off the lanes' lower end. Without a mantissa the parity of a code is that
  // of its exponent, which is not the last bit here.
  static bool fits(const Format& f, int random_bits) {
    constexpr bool kParity = kMode == Rounding::kNearestEven || kMode == Rounding::kToOdd;
    if (f.kind != Kind::kFloat || f.man_bits < (kParity ? 1 : 0)) return false;
    if (f.man_bits > L::kMantissa - 2 || f.subnormals != kSubnormals) return false;
    const int added = kMode == Rounding::kStochastic ? random_bits : 0;
    if (added > L::kMantissa - 1 - f.man_bits || added > 24) return false;
    if (L::kMantissa == 52) return true;
    // The number that rounds the flushed binade is as large as that which rounds 2^(emin +
    // man_bits).
    if (!kSubnormals && f.emin + 25 > 127) return false;
    if (f.emin < -126 || f.emin - f.man_bits < -147) return false;
    return std::ilogb(f.max) + 25 - f.man_bits <= 127 && f.emin - f.man_bits - added - 1 >= -149;
  }

  LPK_HD F operator()(F s, const LaneDraws<L>& draws) const {
    if constexpr (kMode == Rounding::kNearestEven) {
      const F binade = binade_of(s);
      const F shifted = L::fma(binade, magic, s);
      const F rounded = L::fnma(binade, magic, shifted);
      const Mask over = L::template compare<_CMP_GE_OQ>(L::abs(s), limit);
      return L::with_sign_of(L::select(over, beyond, rounded), s);
    } else {
      return L::with_sign_of(bounded(magnitude(s, draws), s), s);
    }
  }

 private:
  static F scaled(double x, int shift) { return L::all(std::ldexp(x, shift)); }

  LPK_HD F binade_of(F s) const {
    const F binade = L::max(L::masked(s, kInfinityBits<L>), min_normal);
    if constexpr (kSubnormals) return binade;
    const Mask small = L::template compare<_CMP_LT_OQ>(L::abs(s), min_normal);
    return L::select(small, flushed_binade, binade);
  }

  // |s| rounded as if there were no maximum; magnitudes past the largest binade stand for one just
  // past it.
  LPK_HD F magnitude(F s, const LaneDraws<L>& draws) const {
    // Given a NaN, min leaves its second operand.
    F a = L::min(limit, L::abs(s));
    const F binade = binade_of(a);
    // A carry into the next binade is on that one's coarser grid already.
    if constexpr (kMode == Rounding::kStochastic) {
      a = L::template fma<kZero>(draws.number(), binade * added_unit, a);
    } else if constexpr (kMode == Rounding::kNearestAway) {
      a = L::template fma<kZero>(binade, added_unit, a);
    }
    if constexpr (kSigned) a = L::with_sign_of(a, s);
    F shifted = L::template fma<hardware_mode(kMode)>(binade, magic, a);
    if constexpr (kMode == Rounding::kToOdd) {
      // The last bit of `shifted` is the parity of the code.
      shifted = odd_of_bracket<L>(shifted, L::template fma<kUp>(binade, magic, a));
    }
    const F rounded = L::fnma(binade, magic, shifted);
    return kSigned ? L::abs(rounded) : rounded;
  }

  LPK_HD F bounded(F r, F s) const {
    const Mask over = L::template compare<_CMP_GT_OQ>(r, max);
    if constexpr (kMode == Rounding::kStochastic || kMode == Rounding::kNearestAway) {
      return L::select(over, beyond, r);
    }
    // A finite sum stops at max where its direction points to zero; an infinite one does not.
    Mask passes = L::template compare<_CMP_EQ_OQ>(L::abs(s), L::all(HUGE_VAL));
    const Mask negative = L::negative(s);
    if (kMode == Rounding::kTowardPositive) passes |= static_cast<Mask>(~negative);
    if (kMode == Rounding::kTowardNegative) passes |= negative;
    return L::select(static_cast<Mask>(over & passes), beyond, L::select(over, max, r));
  }
};

// Rounds 24-bit sums to a format that has float32's exponents and infinities: the bits carry into
// the exponent by themselves, up to infinity, and the subnormals are evenly spaced in them.
template <Rounding kRule>
struct WideRule : LaneRule {
  using L = RoundedLanes<float>;
  static constexpr Rounding kMode = kRule;
  __m512i keep;  // all but the dropped bits
  __m512i half_less_one, one;
  __m128i dropped;

  // Draws come below the last place, the highest bit next to it.
  static int draw_place(const Format& f, int random_bits) { return 22 - f.man_bits - random_bits; }

  WideRule(const Format& f, int)
      : keep(_mm512_set1_epi32(-(1 << (23 - f.man_bits)))),
        half_less_one(_mm512_set1_epi32((1 << (22 - f.man_bits)) - 1)),
        one(_mm512_set1_epi32(1)),
        dropped(_mm_cvtsi32_si128(23 - f.man_bits)) {}

  static bool fits(const Format& f, int random_bits) {
    if (f.kind != Kind::kFloat || !f.subnormals || f.exp_bits != 8 || f.emin != -126) return false;
    if (f.specials != Specials::kIeee || f.overflow != Overflow::kInfinity) return false;
    if (f.man_bits < 1 || f.man_bits > 21) return false;
    return kMode != Rounding::kStochastic || random_bits <= 22 - f.man_bits;
  }

  LPK_HD __m512 operator()(__m512 s, const LaneDraws<L>& draws) const {
    const __m512i bits = L::bits(s);
    const __m512i rounded = _mm512_and_si512(carried(bits, draws), keep);
    // Infinity has no bits to carry; NaN would carry into them.
    const __mmask16 special =
        _mm512_cmp_ps_mask(_mm512_abs_ps(s), _mm512_set1_ps(HUGE_VALF), _CMP_NLT_UQ);
    return L::value(_mm512_mask_mov_epi32(rounded, special, bits));
  }

 private:
  // Adds to the bits, so that truncation to the kept bits rounds as the mode says.
  LPK_HD __m512i carried(__m512i bits, const LaneDraws<L>& draws) const {
    if constexpr (kMode == Rounding::kNearestEven) {
      const __m512i last = _mm512_and_si512(_mm512_srl_epi32(bits, dropped), one);
      return _mm512_add_epi32(_mm512_add_epi32(bits, half_less_one), last);
    } else if constexpr (kMode == Rounding::kStochastic) {
      return draws.added_to(bits);
    } else {
      static_assert(kMode == Rounding::kTowardZero);
      return bits;
    }
  }
};

// float32 itself: the processor's own rounding is the last one.
template <Rounding kRule>
struct SameRule : LaneRule {
  using L = RoundedLanes<float>;
  static constexpr Rounding kMode = kRule;
  SameRule(const Format&, int) {}
  static bool fits(const Format& f, int) { return is_float32(f) && kMode != Rounding::kStochastic; }
};

// A saturating fixed-point format of at most 26 bits, in doubles: first stopped at its ends, where
// rounding leaves it, then rounded to the grid. Zeros are +0.
template <class Lanes, Rounding kRule>
struct FixedRule : LaneRule {
  using L = Lanes;
  using F = typename L::F;
  static constexpr bool kRare = true;
  static constexpr Rounding kMode = kRule;
  // Whether the sum itself is rounded, and not its magnitude.
  static constexpr bool kSigned =
      kMadeOdd<kMode> || kMode == Rounding::kTowardPositive || kMode == Rounding::kTowardNegative;
  F lowest, highest, magic, added;

  FixedRule(const Format& f, int random_bits)
      : lowest(L::all(f.lowest)),
        highest(L::all(f.max)),
        magic(L::all((kSigned ? 0x1.8p52 : 0x1p52) * f.quantum)),
        added(L::all(f.quantum *
                     std::ldexp(0.5, kMode == Rounding::kStochastic ? -random_bits : 0))) {}

  static bool fits(const Format& f, int random_bits) {
    return L::kMantissa == 52 && f.kind == Kind::kFixed && f.overflow == Overflow::kSaturate &&
           f.modulus <= 0x1p26 && random_bits <= 24;
  }

  LPK_HD F operator()(F s, const LaneDraws<L>& draws) const {
    // A NaN is the second operand, and stays.
    const F stopped = L::min(highest, L::max(lowest, s));
    if constexpr (kMode == Rounding::kToOdd) {
      return odd_of_bracket<L>(L::template add<kDown>(stopped, magic),
                               L::template add<kUp>(stopped, magic)) -
             magic;
    } else if constexpr (kSigned) {
      return L::template add<hardware_mode(kMode)>(stopped, magic) - magic;
    } else {
      F a = L::abs(stopped);
      if constexpr (kMode == Rounding::kStochastic) {
        a = L::template fma<kZero>(draws.number(), added, a);
      } else if constexpr (kMode == Rounding::kNearestAway) {
        a = L::template add<kZero>(a, added);
      }
      const F r = L::template add<kZero>(a, magic) - magic;
      return L::with_sign_of(r, stopped) + L::all(0.0);
    }
  }
};

// nearest_even and to_odd in a format without a mantissa, whose values are zero and powers of two.
// nearest_even adds half of the binade to the bits, less one where the code is even: a tie goes on
// from odd codes only. to_odd adds a binade to even codes of inexact sums.
template <class Lanes, Rounding kRule>
struct PowerRule : LaneRule {
  using L = Lanes;
  using F = typename L::F;
  using I = typename L::I;
  using Mask = typename L::Mask;
  static constexpr Rounding kMode = kRule;
  F min_normal, vanishing, max, beyond;
  I half_less_one, flip;

  PowerRule(const Format& f, int)
      : min_normal(L::all(f.min_normal)),
        vanishing(L::all(kMode == Rounding::kToOdd ? 0.0 : f.min_normal / 2)),
        max(L::all(f.max)),
        beyond(L::all(f.beyond)),
        half_less_one(L::word((int64_t{1} << (L::kMantissa - 1)) - 1)),
        flip(L::word((kBias + f.emin - 1) & 1)) {}

  static bool fits(const Format& f, int) {
    if (f.kind != Kind::kFloat || f.man_bits != 0) return false;
    return L::kMantissa == 52 || (f.emin - 1 >= -126 && std::ilogb(f.max) <= 126);
  }

  LPK_HD F operator()(F s, const LaneDraws<L>&) const {
    const F a = L::abs(s);
    // The smallest of the values below min_normal become zero. A NaN is not among them: given a
    // NaN, max leaves its second operand.
    const I bits =
        L::bits(L::max_or_zero(L::template compare<_CMP_NLE_UQ>(a, vanishing), min_normal, a));
    const I odd = L::exponent_parity(bits, flip);
    const F number = L::select(L::template compare<_CMP_ORD_Q>(s, s), rounded(a, bits, odd), s);
    return L::with_sign_of(number, s);
  }

 private:
  static constexpr int kBias = L::kMantissa == 52 ? 1023 : 127;

  LPK_HD F rounded(F a, I bits, I odd) const {
    if constexpr (kMode == Rounding::kNearestEven) {
      const I carried = L::plus(L::plus(bits, half_less_one), odd);
      const F r = L::masked(L::value(carried), kInfinityBits<L>);
      return L::select(L::template compare<_CMP_GT_OQ>(r, max), beyond, r);
    } else {
      const F below = L::masked(L::value(bits), kInfinityBits<L>);
      // An exact sum is its own power of two.
      const Mask inexact = L::template compare<_CMP_NEQ_OQ>(below, a);
      const Mask even = static_cast<Mask>(~L::any_bit(odd, L::word(1)));
      const F r = L::select(inexact & even, below + below, below);
      const F finite = L::select(L::template compare<_CMP_GT_OQ>(r, max), max, r);
      return L::select(L::template compare<_CMP_EQ_OQ>(a, L::all(HUGE_VAL)), beyond, finite);
    }
  }
};

}  // namespace
}  // namespace lpk
