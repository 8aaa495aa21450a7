// nearest_even in float32 lanes, AVX-512: twice the lanes of the kernels in double, for the formats
// that allow it.
//
// The exact sum a b + acc is bracketed by two fused multiply-adds with opposite directed rounding
// and made odd (the end nearer zero, its last bit set unless both ends agree). Odd with 24 bits
// rounds correctly to man_bits + 1 <= 22, whatever the operands: no certificate is needed. Adding
// and taking away 1.5 2^(23 - man_bits) binades rounds, subnormals included.
#pragma once

#include <cmath>

#include "chunks.h"

namespace lpk {
namespace {

// A format's constants in float32.
struct FloatRule {
  __m512 min_normal, magic, overflow_from, beyond;

  explicit FloatRule(const Format& f)
      : min_normal(_mm512_set1_ps(static_cast<float>(f.min_normal))),
        magic(_mm512_set1_ps(std::ldexp(1.5f, 23 - f.man_bits))),
        overflow_from(_mm512_set1_ps(at_least(f.overflow_from))),
        beyond(_mm512_set1_ps(static_cast<float>(f.beyond))) {}

  // The smallest float that is not below x.
  static float at_least(double x) {
    const float nearest = static_cast<float>(x);
    return nearest < x ? std::nextafter(nearest, HUGE_VALF) : nearest;
  }

  // Two bits must be left between the format's last place and float32's, in the subnormals too; the
  // magic constant of the largest binade must be finite; and a mantissa bit must exist for ties to
  // look at.
  static bool fits(const Format& f, Rounding rounding) {
    if (f.kind != Kind::kFloat || rounding != Rounding::kNearestEven || !f.subnormals) return false;
    if (f.man_bits < 1 || f.man_bits > 21) return false;
    return f.emin >= -126 && f.emin - f.man_bits >= -147 &&
           std::ilogb(f.max) + 24 - f.man_bits <= 127;
  }
};

LPK_HD __m512 float_odd_of_bracket(__m512 down, __m512 up) {
  // The sign comes from `up`: an exact zero is +0 unless both addends are -0, as in nearest mode.
  const __m512i toward_zero = _mm512_castps_si512(_mm512_range_ps(up, down, 0b0010));
  const __m512i either = _mm512_or_si512(_mm512_castps_si512(down), _mm512_castps_si512(up));
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(toward_zero, either, _mm512_set1_epi32(1),
                                                       0xf8));  // toward_zero | (either & 1)
}

LPK_HD __m512 round_float_nearest(__m512 s, const FloatRule& rule) {
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);
  const __m512 exponent = _mm512_and_ps(s, _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000)));
  const __m512 binade = _mm512_max_ps(exponent, rule.min_normal);
  const __m512 shifted = _mm512_fmadd_ps(binade, rule.magic, s);
  const __m512 rounded = _mm512_fnmadd_ps(binade, rule.magic, shifted);
  const __mmask16 over = _mm512_cmp_ps_mask(_mm512_abs_ps(s), rule.overflow_from, _CMP_GE_OQ);
  const __m512 magnitude = _mm512_mask_mov_ps(rounded, over, rule.beyond);
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude),
                                                       _mm512_castps_si512(s), sign,
                                                       0xf8));  // magnitude | (s & sign)
}

constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;

template <bool kProduct>
LPK_HD __m512 float_step(__m512 sum, __m512 a, __m512 b, const FloatRule& rule,
                         const FloatRule& product_rule) {
  if constexpr (!kProduct) {
    const __m512 odd = float_odd_of_bracket(_mm512_fmadd_round_ps(a, b, sum, kDown),
                                            _mm512_fmadd_round_ps(a, b, sum, kUp));
    return round_float_nearest(odd, rule);
  } else {
    const __m512 exact =
        float_odd_of_bracket(_mm512_mul_round_ps(a, b, kDown), _mm512_mul_round_ps(a, b, kUp));
    const __m512 p = round_float_nearest(exact, product_rule);
    const __m512 odd =
        float_odd_of_bracket(_mm512_add_round_ps(sum, p, kDown), _mm512_add_round_ps(sum, p, kUp));
    return round_float_nearest(odd, rule);
  }
}

template <int kRows, bool kProduct, bool kMasked>
void run_float_panel(const Tile& t, const Accumulator& acc, int64_t row, int64_t lane) {
  static_assert(kPanel == 16, "a panel is one vector of float32");
  const FloatRule rule(acc.fmt);
  const FloatRule product_rule(kProduct ? acc.product : acc.fmt);
  const float* a = t.a + row * t.depth;
  const float* b = t.b + lane * t.depth;
  float* inner = t.inner + row * t.lanes + lane;
  __m512 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_loadu_ps(inner + r * t.lanes);
  for_each_span(t, acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
    for (int64_t k = from; k < to; ++k) {
      const __m512 column = _mm512_loadu_ps(b + k * kPanel);
      for (int r = 0; r < kRows; ++r) {
        if (kMasked && t.absent[(row + r) * t.depth + k]) continue;
        sum[r] = float_step<kProduct>(sum[r], _mm512_set1_ps(a[r * t.depth + k]), column, rule,
                                      product_rule);
      }
    }
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(inner + r * t.lanes, sum[r]);
    if (closed < 0) return;
    close_chunk<Vec<8>, kRows>(t, acc, row, lane, static_cast<uint64_t>(closed));
    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
  });
}

template <bool kProduct, bool kMasked>
void run_float_rows(const Tile& t, const Accumulator& acc) {
  constexpr int kRows = 8;
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    int64_t row = 0;
    for (; row + kRows <= t.rows; row += kRows)
      run_float_panel<kRows, kProduct, kMasked>(t, acc, row, lane);
    for (; row + 2 <= t.rows; row += 2) run_float_panel<2, kProduct, kMasked>(t, acc, row, lane);
    for (; row < t.rows; ++row) run_float_panel<1, kProduct, kMasked>(t, acc, row, lane);
  }
}

bool float_nearest_fits(const Accumulator& acc) {
  return FloatRule::fits(acc.fmt, acc.rounding) &&
         (!acc.has_product || FloatRule::fits(acc.product, acc.product_rounding));
}

void run_float_tile(const Tile& t, const Accumulator& acc) {
  const bool masked = t.absent != nullptr;
  if (acc.has_product)
    return masked ? run_float_rows<true, true>(t, acc) : run_float_rows<true, false>(t, acc);
  return masked ? run_float_rows<false, true>(t, acc) : run_float_rows<false, false>(t, acc);
}

}  // namespace
}  // namespace lpk
