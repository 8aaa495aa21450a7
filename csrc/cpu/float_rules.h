// Rounding in float32 lanes, AVX-512, each mode with a sum brought to 24 bits in a way that cannot
// round twice.
//
//   mode                      the sum in 24 bits            then
//   nearest_even              made odd (directed bracket)   one nearest rounding
//   to_odd                    made odd                      made odd again
//   toward_positive/negative  rounded that way              rounded that way again
//   toward_zero               truncated                     truncated again
//   nearest_away              truncated                     + half a quantum, truncated
//   stochastic                truncated                     + (2 draw + 1) / 2^(R+1) quanta,
//   truncated
//
// A rule rounds by adding and taking away a power of two so large that the format's quantum is the
// last place of the sum (subnormals included), or, for formats with float32's own exponents, by
// arithmetic on the bits.
#pragma once

#include <cmath>

#include "vector.h"

namespace lpk {
namespace {

// The smallest float that is not below x.
inline float float_at_least(double x) {
  const float nearest = static_cast<float>(x);
  return nearest < x ? std::nextafter(nearest, HUGE_VALF) : nearest;
}

LPK_HD __m512 bits_as_float(__m512i x) { return _mm512_castsi512_ps(x); }
LPK_HD __m512i float_as_bits(__m512 x) { return _mm512_castps_si512(x); }

LPK_HD __m512 with_sign_of(__m512 magnitude, __m512 s) {
  // magnitude | (s & sign)
  return bits_as_float(_mm512_ternarylogic_epi32(float_as_bits(magnitude), float_as_bits(s),
                                                 _mm512_set1_epi32(INT32_MIN), 0xf8));
}

// The exact sum, made odd, from the same sum rounded down and up: they are equal, or neighbours,
// and then one of the two has an odd last bit. An exact zero has the sign of `up`: +0 unless both
// addends are -0, as in nearest mode. Past the largest float the odd neighbour is the finite one.
LPK_HD __m512 odd_of_bracket(__m512 down, __m512 up) {
  const __mmask16 odd = _mm512_test_epi32_mask(float_as_bits(down), _mm512_set1_epi32(1));
  return _mm512_mask_mov_ps(up, odd, down);
}

constexpr int kNearestMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
constexpr int kZero = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

template <Rounding kMode>
constexpr bool kMadeOdd = kMode == Rounding::kNearestEven || kMode == Rounding::kToOdd;

// The processor's rounding that goes with a mode; of magnitudes where the mode looks at them.
template <Rounding kMode>
constexpr int hardware_mode() {
  if (kMode == Rounding::kNearestEven) return kNearestMode;
  if (kMode == Rounding::kTowardPositive) return kUp;
  if (kMode == Rounding::kTowardNegative) return kDown;
  return kZero;
}

// a b + c, or a b, or b + c, in 24 bits as the table above says.
template <Rounding kMode>
LPK_HD __m512 sum_of_product(__m512 a, __m512 b, __m512 c) {
  if constexpr (kMadeOdd<kMode>) {
    return odd_of_bracket(_mm512_fmadd_round_ps(a, b, c, kDown),
                          _mm512_fmadd_round_ps(a, b, c, kUp));
  } else {
    return _mm512_fmadd_round_ps(a, b, c, hardware_mode<kMode>());
  }
}

template <Rounding kMode>
LPK_HD __m512 product_alone(__m512 a, __m512 b) {
  if constexpr (kMadeOdd<kMode>) {
    return odd_of_bracket(_mm512_mul_round_ps(a, b, kDown), _mm512_mul_round_ps(a, b, kUp));
  } else {
    return _mm512_mul_round_ps(a, b, hardware_mode<kMode>());
  }
}

template <Rounding kMode>
LPK_HD __m512 sum_alone(__m512 b, __m512 c) {
  if constexpr (kMadeOdd<kMode>) {
    return odd_of_bracket(_mm512_add_round_ps(b, c, kDown), _mm512_add_round_ps(b, c, kUp));
  } else {
    return _mm512_add_round_ps(b, c, hardware_mode<kMode>());
  }
}

// 2 draw + 1 of one draw in each lane, from the words that hold it, moved left to bit `place`.
struct LaneDraws {
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
};

// Rounds 24-bit sums to a format with an exponent range well inside float32's. The sums may be
// scaled by 2^shift. Without subnormals the quantum below min_normal is min_normal itself.
template <Rounding kRule, bool kSubnormals = true>
struct NarrowRule {
  static constexpr Rounding kMode = kRule;
  static constexpr bool kSigned =
      kMode == Rounding::kTowardPositive || kMode == Rounding::kTowardNegative;
  __m512 min_normal, magic, limit, max, beyond, added_unit;
  __m512 flushed_binade;  // the one whose quantum is min_normal

  // Draws come as numbers 2 draw + 1.
  static int draw_place(const Format&, int) { return 0; }

  NarrowRule(const Format& f, int random_bits, int shift = 0)
      : min_normal(scaled(f.min_normal, shift)),
        // Half a power of two more where signed sums must not leave its binade.
        magic(_mm512_set1_ps(
            std::ldexp(kSigned || kMode == Rounding::kNearestEven ? 1.5f : 1.0f, 23 - f.man_bits))),
        limit(kMode == Rounding::kNearestEven
                  ? _mm512_set1_ps(float_at_least(std::ldexp(f.overflow_from, shift)))
                  : scaled(std::ldexp(1.0, std::ilogb(f.max) + 1), shift)),
        max(scaled(f.max, shift)),
        beyond(scaled(f.beyond, shift)),
        added_unit(_mm512_set1_ps(std::ldexp(
            1.0f, -f.man_bits - 1 - (kMode == Rounding::kStochastic ? random_bits : 0)))),
        flushed_binade(scaled(std::ldexp(f.min_normal, f.man_bits), shift)) {}

  // The magic constant of the binade beyond the largest must be finite, and quanta, half quanta and
  // draws must not fall off float32's lower end.
  static bool fits(const Format& f, int random_bits) {
    if (f.kind != Kind::kFloat || f.man_bits < 1 || f.man_bits > 21) return false;
    if (f.subnormals != kSubnormals) return false;
    if (f.emin < -126 || f.emin - f.man_bits < -147) return false;
    if (std::ilogb(f.max) + 25 - f.man_bits > 127) return false;
    return kMode != Rounding::kStochastic ||
           (random_bits <= 22 - f.man_bits && f.emin - f.man_bits - random_bits - 1 >= -149);
  }

  LPK_HD __m512 operator()(__m512 s, const LaneDraws& draws) const {
    if constexpr (kMode == Rounding::kNearestEven) {
      const __m512 binade = binade_of(s);
      const __m512 shifted = _mm512_fmadd_ps(binade, magic, s);
      const __m512 rounded = _mm512_fnmadd_ps(binade, magic, shifted);
      const __mmask16 over = _mm512_cmp_ps_mask(_mm512_abs_ps(s), limit, _CMP_GE_OQ);
      return with_sign_of(_mm512_mask_mov_ps(rounded, over, beyond), s);
    } else {
      return with_sign_of(bounded(magnitude(s, draws), s), s);
    }
  }

 private:
  static __m512 scaled(double x, int shift) {
    return _mm512_set1_ps(static_cast<float>(std::ldexp(x, shift)));
  }

  LPK_HD __m512 binade_of(__m512 s) const {
    const __m512 exponent = _mm512_and_ps(s, bits_as_float(_mm512_set1_epi32(0x7f800000)));
    const __m512 binade = _mm512_max_ps(exponent, min_normal);
    if constexpr (kSubnormals) return binade;
    const __mmask16 small = _mm512_cmp_ps_mask(_mm512_abs_ps(s), min_normal, _CMP_LT_OQ);
    return _mm512_mask_mov_ps(binade, small, flushed_binade);
  }

  // |s| rounded as if there were no maximum; magnitudes past the largest binade stand for one just
  // past it.
  LPK_HD __m512 magnitude(__m512 s, const LaneDraws& draws) const {
    // The second operand of min is what a NaN leaves.
    __m512 a = _mm512_min_ps(limit, _mm512_abs_ps(s));
    const __m512 binade = binade_of(a);
    // A carry into the next binade is on that one's coarser grid already.
    if constexpr (kMode == Rounding::kStochastic) {
      const __m512 draw = _mm512_cvtepi32_ps(draws.odd_doubled());
      a = _mm512_fmadd_round_ps(draw, _mm512_mul_ps(binade, added_unit), a, kZero);
    } else if constexpr (kMode == Rounding::kNearestAway) {
      a = _mm512_fmadd_round_ps(binade, added_unit, a, kZero);
    }
    if constexpr (kSigned) a = with_sign_of(a, s);
    __m512 shifted = _mm512_fmadd_round_ps(binade, magic, a, hardware_mode<kMode>());
    if constexpr (kMode == Rounding::kToOdd) {
      // The last bit of `shifted` is the parity of the code.
      shifted = odd_of_bracket(shifted, _mm512_fmadd_round_ps(binade, magic, a, kUp));
    }
    const __m512 rounded = _mm512_fnmadd_ps(binade, magic, shifted);
    return kSigned ? _mm512_abs_ps(rounded) : rounded;
  }

  LPK_HD __m512 bounded(__m512 r, __m512 s) const {
    const __mmask16 over = _mm512_cmp_ps_mask(r, max, _CMP_GT_OQ);
    if constexpr (kMode == Rounding::kStochastic || kMode == Rounding::kNearestAway) {
      return _mm512_mask_mov_ps(r, over, beyond);
    }
    // A finite sum stops at max where its direction points to zero; an infinite one does not.
    const __m512 infinity = _mm512_set1_ps(HUGE_VALF);
    __mmask16 passes = _mm512_cmp_ps_mask(_mm512_abs_ps(s), infinity, _CMP_EQ_OQ);
    const __mmask16 negative = _mm512_movepi32_mask(float_as_bits(s));
    if (kMode == Rounding::kTowardPositive) passes |= static_cast<__mmask16>(~negative);
    if (kMode == Rounding::kTowardNegative) passes |= negative;
    return _mm512_mask_mov_ps(_mm512_mask_mov_ps(r, over, max), over & passes, beyond);
  }
};

// Rounds 24-bit sums to a format that has float32's exponents and infinities: the bits carry into
// the exponent by themselves, up to infinity, and the subnormals are evenly spaced in them.
template <Rounding kRule>
struct WideRule {
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

  LPK_HD __m512 operator()(__m512 s, const LaneDraws& draws) const {
    const __m512i bits = float_as_bits(s);
    const __m512i rounded = _mm512_and_si512(carried(bits, draws), keep);
    // Infinity has no bits to carry; NaN would carry into them.
    const __mmask16 special =
        _mm512_cmp_ps_mask(_mm512_abs_ps(s), _mm512_set1_ps(HUGE_VALF), _CMP_NLT_UQ);
    return bits_as_float(_mm512_mask_mov_epi32(rounded, special, bits));
  }

 private:
  // What truncation to the kept bits then rounds as the mode says.
  LPK_HD __m512i carried(__m512i bits, const LaneDraws& draws) const {
    if constexpr (kMode == Rounding::kNearestEven) {
      const __m512i last = _mm512_and_si512(_mm512_srl_epi32(bits, dropped), one);
      return _mm512_add_epi32(_mm512_add_epi32(bits, half_less_one), last);
    } else if constexpr (kMode == Rounding::kNearestAway) {
      return _mm512_add_epi32(_mm512_add_epi32(bits, half_less_one), one);
    } else if constexpr (kMode == Rounding::kStochastic) {
      return _mm512_add_epi32(bits, draws.odd_doubled());
    } else if constexpr (kMode == Rounding::kToOdd) {
      const __mmask16 inexact =
          _mm512_test_epi32_mask(_mm512_andnot_si512(keep, bits), _mm512_set1_epi32(-1));
      return _mm512_mask_or_epi32(bits, inexact, bits, _mm512_sll_epi32(one, dropped));
    } else if constexpr (kMode == Rounding::kTowardZero) {
      return bits;
    } else {
      const __mmask16 negative = _mm512_movepi32_mask(bits);
      const __mmask16 outward =
          kMode == Rounding::kTowardNegative ? negative : static_cast<__mmask16>(~negative);
      return _mm512_mask_sub_epi32(bits, outward, bits, _mm512_add_epi32(keep, one));
    }
  }
};

// float32 itself: the processor's own rounding, or the sum made odd, is the last one.
template <Rounding kRule>
struct SameRule {
  static constexpr Rounding kMode = kRule;
  SameRule(const Format&, int) {}
  static int draw_place(const Format&, int) { return 0; }
  static bool fits(const Format& f, int) {
    return f.kind == Kind::kFloat && f.subnormals && f.exp_bits == 8 && f.emin == -126 &&
           f.man_bits == 23 && f.specials == Specials::kIeee && f.overflow == Overflow::kInfinity &&
           kMode != Rounding::kStochastic && kMode != Rounding::kNearestAway;
  }
};

}  // namespace
}  // namespace lpk
