// Rounding in float32 lanes, AVX-512: the modes that processors have, and stochastic, each for a
// sum brought to 24 bits in a way that cannot round twice.
//
//   mode              the sum in 24 bits                          then
//   nearest_even      made odd, from two directed results         one nearest rounding; needs two
//   bits more than the format toward_*          rounded in the same direction               one
//   rounding in that direction stochastic        truncated truncation of sum + (2 draw + 1) /
//   2^(R+1) quanta
//
// A rule rounds by adding and taking away a power of two so large that the format's quantum is the
// last place of the sum (subnormals included), or, for formats with float32's own exponents, by
// arithmetic on the bits.
#pragma once

#include <cmath>

#include "chunks.h"

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

// The end of the bracket nearer zero, its last bit set unless both ends agree. The sign comes from
// `up`: an exact zero is +0 unless both addends are -0, as in nearest mode.
LPK_HD __m512 odd_of_bracket(__m512 down, __m512 up) {
  const __m512i toward_zero = float_as_bits(_mm512_range_ps(up, down, 0b0010));
  const __m512i either = _mm512_or_si512(float_as_bits(down), float_as_bits(up));
  // toward_zero | (either & 1)
  return bits_as_float(_mm512_ternarylogic_epi32(toward_zero, either, _mm512_set1_epi32(1), 0xf8));
}

constexpr int kNearestMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
constexpr int kZero = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

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
  if constexpr (kMode == Rounding::kNearestEven) {
    return odd_of_bracket(_mm512_fmadd_round_ps(a, b, c, kDown),
                          _mm512_fmadd_round_ps(a, b, c, kUp));
  } else {
    return _mm512_fmadd_round_ps(a, b, c, hardware_mode<kMode>());
  }
}

template <Rounding kMode>
LPK_HD __m512 product_alone(__m512 a, __m512 b) {
  if constexpr (kMode == Rounding::kNearestEven) {
    return odd_of_bracket(_mm512_mul_round_ps(a, b, kDown), _mm512_mul_round_ps(a, b, kUp));
  } else {
    return _mm512_mul_round_ps(a, b, hardware_mode<kMode>());
  }
}

template <Rounding kMode>
LPK_HD __m512 sum_alone(__m512 b, __m512 c) {
  if constexpr (kMode == Rounding::kNearestEven) {
    return odd_of_bracket(_mm512_add_round_ps(b, c, kDown), _mm512_add_round_ps(b, c, kUp));
  } else {
    return _mm512_add_round_ps(b, c, hardware_mode<kMode>());
  }
}

// 2 draw + 1 of one draw in each lane, from the words that hold it.
struct LaneDraws {
  __m512i words;
  __m128i shift;  // one less than the place of the draw in its word, so that the draw lands doubled
  bool left;      // that place is 0
  __m512i mask;   // the draw's bits, doubled

  LPK_HD __m512i odd_doubled() const {
    const __m512i placed = left ? _mm512_slli_epi32(words, 1) : _mm512_srl_epi32(words, shift);
    // (placed & mask) | 1
    return _mm512_ternarylogic_epi32(placed, mask, _mm512_set1_epi32(1), 0xea);
  }
};

// Rounds 24-bit sums to a format with an exponent range well inside float32's.
template <Rounding kRule>
struct NarrowRule {
  static constexpr Rounding kMode = kRule;
  __m512 min_normal, magic, limit, max, beyond, draw_unit;

  NarrowRule(const Format& f, int random_bits)
      : min_normal(_mm512_set1_ps(static_cast<float>(f.min_normal))),
        magic(_mm512_set1_ps(std::ldexp(kMode == Rounding::kNearestEven ||
                                                kMode == Rounding::kTowardPositive ||
                                                kMode == Rounding::kTowardNegative
                                            ? 1.5f
                                            : 1.0f,
                                        23 - f.man_bits))),
        limit(_mm512_set1_ps(kMode == Rounding::kNearestEven
                                 ? float_at_least(f.overflow_from)
                                 : static_cast<float>(std::ldexp(1.0, std::ilogb(f.max) + 1)))),
        max(_mm512_set1_ps(static_cast<float>(f.max))),
        beyond(_mm512_set1_ps(static_cast<float>(f.beyond))),
        draw_unit(_mm512_set1_ps(std::ldexp(1.0f, -f.man_bits - random_bits - 1))) {}

  // The magic constant of the binade beyond the largest must be finite, and quanta and draws must
  // not fall off float32's lower end.
  static bool fits(const Format& f, int random_bits) {
    if (f.kind != Kind::kFloat || !f.subnormals || f.man_bits < 1 || f.man_bits > 21) return false;
    if (f.emin < -126 || f.emin - f.man_bits < -147 || std::ilogb(f.max) + 25 - f.man_bits > 127)
      return false;
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
  LPK_HD __m512 binade_of(__m512 s) const {
    const __m512 exponent = _mm512_and_ps(s, bits_as_float(_mm512_set1_epi32(0x7f800000)));
    return _mm512_max_ps(exponent, min_normal);
  }

  // |s| rounded as if there were no maximum; magnitudes past the largest binade stand for one just
  // past it.
  LPK_HD __m512 magnitude(__m512 s, const LaneDraws& draws) const {
    constexpr bool kSigned =
        kMode == Rounding::kTowardPositive || kMode == Rounding::kTowardNegative;
    // The second operand of min is what a NaN leaves.
    __m512 a = _mm512_min_ps(limit, _mm512_abs_ps(s));
    const __m512 binade = binade_of(a);
    if constexpr (kMode == Rounding::kStochastic) {
      const __m512 draw = _mm512_cvtepi32_ps(draws.odd_doubled());
      a = _mm512_fmadd_round_ps(draw, _mm512_mul_ps(binade, draw_unit), a, kZero);
    }
    if constexpr (kSigned) a = with_sign_of(a, s);
    // The draw may have carried into the next binade: its own quantum is a multiple, truncation to
    // the smaller one is exact.
    const __m512 shifted = _mm512_fmadd_round_ps(binade, magic, a, hardware_mode<kMode>());
    const __m512 rounded = _mm512_fnmadd_ps(binade, magic, shifted);
    return kSigned ? _mm512_abs_ps(rounded) : rounded;
  }

  LPK_HD __m512 bounded(__m512 r, __m512 s) const {
    const __mmask16 over = _mm512_cmp_ps_mask(r, max, _CMP_GT_OQ);
    if constexpr (kMode == Rounding::kStochastic) return _mm512_mask_mov_ps(r, over, beyond);
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
  __m128i dropped, draw_shift;

  WideRule(const Format& f, int random_bits)
      : keep(_mm512_set1_epi32(-(1 << (23 - f.man_bits)))),
        half_less_one(_mm512_set1_epi32((1 << (22 - f.man_bits)) - 1)),
        one(_mm512_set1_epi32(1)),
        dropped(_mm_cvtsi32_si128(23 - f.man_bits)),
        draw_shift(_mm_cvtsi32_si128(22 - f.man_bits - random_bits)) {}

  static bool fits(const Format& f, int random_bits) {
    if (f.kind != Kind::kFloat || !f.subnormals || f.exp_bits != 8 || f.emin != -126) return false;
    if (f.specials != Specials::kIeee || f.overflow != Overflow::kInfinity) return false;
    if (f.man_bits < 1 || f.man_bits > 21) return false;
    if (kMode == Rounding::kStochastic) return random_bits <= 22 - f.man_bits;
    return kMode == Rounding::kNearestEven || kMode == Rounding::kTowardZero;
  }

  LPK_HD __m512 operator()(__m512 s, const LaneDraws& draws) const {
    const __m512i bits = float_as_bits(s);
    __m512i sum = bits;
    if constexpr (kMode == Rounding::kNearestEven) {
      const __m512i last = _mm512_and_si512(_mm512_srl_epi32(bits, dropped), one);
      sum = _mm512_add_epi32(_mm512_add_epi32(bits, half_less_one), last);
    } else if constexpr (kMode == Rounding::kStochastic) {
      sum = _mm512_add_epi32(bits, _mm512_sll_epi32(draws.odd_doubled(), draw_shift));
    }
    // Infinity has no bits to carry; NaN would carry into them.
    const __mmask16 special =
        _mm512_cmp_ps_mask(_mm512_abs_ps(s), _mm512_set1_ps(HUGE_VALF), _CMP_NLT_UQ);
    return bits_as_float(_mm512_mask_mov_epi32(_mm512_and_si512(sum, keep), special, bits));
  }
};

// float32 itself: the processor's own rounding is the last one.
template <Rounding kRule>
struct SameRule {
  static constexpr Rounding kMode = kRule;
  SameRule(const Format&, int) {}
  static bool fits(const Format& f, int) {
    return f.kind == Kind::kFloat && f.subnormals && f.exp_bits == 8 && f.emin == -126 &&
           f.man_bits == 23 && f.specials == Specials::kIeee && f.overflow == Overflow::kInfinity &&
           kMode != Rounding::kStochastic;
  }
};

}  // namespace
}  // namespace lpk
