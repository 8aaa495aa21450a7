// Events of sequential sums in float32 lanes of AVX-512; included by events_kernel.h.
#pragma once

#include "cpu/sums/exact/float_lane_rules.h"
#include "event_steps.h"

namespace lpk {
namespace {

using FloatLanes = RoundedLanes<float>;

// The products are exact.
struct ExactProducts {
  static constexpr bool kRounds = false;
  ExactProducts(const Format&, int) {}
  static bool fits(const Format&, Rounding) { return true; }
};
// They round as the sums do.
template <class Rule>
struct RoundedProducts : Rule {
  static constexpr bool kRounds = true;
  using Rule::Rule;
  static bool fits(const Format& f, Rounding rounding) {
    return rounding == Rule::kMode && Rule::fits(f, 0);
  }
};

// SequentialEvents in float32 lanes, for the rules of float_lane_rules.h: sums in 24 bits as its
// table says, odd or truncated, which compare with the range's end as the exact ones do.
template <class Sum, class Product, int kRows>
struct FloatEvents {
  static constexpr Rounding kMode = Sum::kMode;
  static_assert(kMode == Rounding::kNearestEven || kMode == Rounding::kTowardZero,
                "the range is symmetric and needs no draw");
  EventState& s;
  const Sum sum_rule;
  const Product product_rule;
  const __m512 sum_end, product_end;
  const __m512 infinity = _mm512_set1_ps(HUGE_VALF);

  explicit FloatEvents(EventState& state)
      : s(state),
        sum_rule(state.acc.fmt, state.acc.random_bits),
        product_rule(state.acc.product, state.acc.random_bits),
        sum_end(end_of(state.acc.fmt)),
        product_end(end_of(Product::kRounds ? state.acc.product : state.acc.fmt)) {}

  static bool fits(const Accumulator& acc) {
    return acc.rounding == kMode && !acc.rounds_every_step() && acc.has_running_sum() &&
           acc.has_product == Product::kRounds && Sum::fits(acc.fmt, 0) &&
           Product::fits(acc.product, acc.product_rounding);
  }
  static __m512 end_of(const Format& f) { return FloatLanes::at_least(Range(f, kMode).above); }
  LPK_HD __mmask16 finite(__m512 x) const {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(x), infinity, _CMP_LT_OQ);
  }

  void start(int64_t) {}
  void span(int64_t row, int64_t from, int64_t to) const {
    __m512 sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_loadu_ps(s.inner[row + r]);
    for (int64_t k = from; k < to; ++k) {
      const int64_t at = k - s.piece.from;
      const __m512 column = _mm512_loadu_ps(s.b + at * kPanel);
      const __mmask16 columns = _mm512_cmp_ps_mask(column, _mm512_setzero_ps(), _CMP_NEQ_UQ);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512 a = _mm512_set1_ps(s.a[(row + r) * kEventDepth + at]);
        const __m512 before = sum[r];
        const __mmask16 sums = finite(before);
        __mmask16 counts, over;
        __m512 total;
        if constexpr (Product::kRounds) {
          const __m512 exact = product_alone<FloatLanes, kMode>(a, column);
          const __m512 p = product_rule(exact, LaneDraws<FloatLanes>{});
          const __mmask16 products = finite(p);
          total = sum_alone<FloatLanes, kMode>(p, before);
          counts = _mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_NEQ_UQ) & products & sums;
          over = _mm512_cmp_ps_mask(_mm512_abs_ps(exact), product_end, _CMP_GE_OQ) |
                 (_mm512_cmp_ps_mask(_mm512_abs_ps(total), sum_end, _CMP_GE_OQ) & products & sums);
        } else {
          total = sum_of_product<FloatLanes, kMode>(a, column, before);
          counts = _mm512_mask_cmp_ps_mask(columns, a, _mm512_setzero_ps(), _CMP_NEQ_UQ) & sums;
          over = _mm512_cmp_ps_mask(_mm512_abs_ps(total), sum_end, _CMP_GE_OQ) & sums;
        }
        sum[r] = sum_rule(total, LaneDraws<FloatLanes>{});
        const __mmask16 lost = _mm512_mask_cmp_ps_mask(counts, sum[r], before, _CMP_EQ_OQ);
        put_step(s.piece, row + r, at, counts, lost, over);
      }
    }
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(s.inner[row + r], sum[r]);
  }
  void close(int64_t) {}
};

template <class Sum, class Product>
bool count_in_float(const EventBlock& block, const Accumulator& acc) {
  if (!FloatEvents<Sum, Product, 1>::fits(acc)) return false;
  run_events<Vec<8>, FloatEvents<Sum, Product, kEventRows>, kEventRows,
             FloatEvents<Sum, Product, 1>>(block);
  return true;
}

template <>
bool InFloat<Avx512>::count(const EventBlock& block, const Accumulator& acc) {
  using Nearest = NarrowRule<FloatLanes, Rounding::kNearestEven>;
  using Flushed = NarrowRule<FloatLanes, Rounding::kNearestEven, false>;
  using Wide = WideRule<Rounding::kNearestEven>;
  using Cut = NarrowRule<FloatLanes, Rounding::kTowardZero>;
  using FlushedCut = NarrowRule<FloatLanes, Rounding::kTowardZero, false>;
  return count_in_float<Nearest, ExactProducts>(block, acc) ||
         count_in_float<Nearest, RoundedProducts<Nearest>>(block, acc) ||
         count_in_float<Flushed, ExactProducts>(block, acc) ||
         count_in_float<Wide, ExactProducts>(block, acc) ||
         count_in_float<Wide, RoundedProducts<Nearest>>(block, acc) ||
         count_in_float<Cut, ExactProducts>(block, acc) ||
         count_in_float<Cut, RoundedProducts<Cut>>(block, acc) ||
         count_in_float<FlushedCut, ExactProducts>(block, acc) ||
         count_in_float<FlushedCut, RoundedProducts<FlushedCut>>(block, acc);
}

}  // namespace
}  // namespace lpk
