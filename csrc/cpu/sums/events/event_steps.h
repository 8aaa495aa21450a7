// Events of sums that take one product after the other: sequential ones and Kahan's.
#pragma once

#include "common/orders.h"
#include "event_sums.h"
#if defined(__AVX512F__)
#include "cpu/sums/exact/float_lane_rules.h"
#endif

namespace lpk {
namespace {

// sum <- round(sum + p): p is lost where the sum stays.
template <class V, bool kNearest, bool kRoundsProducts, int kRows>
struct SequentialEvents : EventRules<V, kNearest, kRoundsProducts, kRows> {
  using Base = EventRules<V, kNearest, kRoundsProducts, kRows>;
  using D = typename V::D;
  using Base::Base, Base::kVectors, Base::s;

  void span(int64_t row, int64_t from, int64_t to) {
    D sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = load_floats<V>(s.inner[row + r] + v * V::kWidth);
    }
    for (int64_t k = from; k < to; ++k) {
      const int64_t at = k - s.piece.from;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const D a = this->left(row + r, at);
        uint32_t added = 0, lost = 0, over = 0;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          uint32_t out;
          const D p = this->product(a, this->right(v, at), r, v, k, out);
          const D before = sum[r][v];
          const D after = this->add(before, p, r, v, k, out);
          uint32_t counts = nonzero_lanes<V>(p) & finite_lanes<V>(before);
          if (kRoundsProducts) counts &= finite_lanes<V>(p);
          added |= counts << (v * V::kWidth);
          lost |= (counts & equal_lanes<V>(after, before)) << (v * V::kWidth);
          over |= out << (v * V::kWidth);
          sum[r][v] = after;
        }
        put_step(s.piece, row + r, at, added, lost, over);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        store_floats<V>(s.inner[row + r] + v * V::kWidth, sum[r][v]);
    }
  }
  void close(int64_t row) {
    (void)row;  // The sum is in the state already.
  }
};

// Kahan's sums: p is lost where neither sum nor correction changes.
template <class V, bool kNearest, bool kRoundsProducts>
struct CompensatedEvents : EventRules<V, kNearest, kRoundsProducts, 1> {
  using Base = EventRules<V, kNearest, kRoundsProducts, 1>;
  using D = typename V::D;
  using Base::Base, Base::kVectors, Base::s;
  float correction[kEventRows][kPanel] = {};

  void span(int64_t row, int64_t from, int64_t to) {
    for (int64_t k = from; k < to; ++k) {
      const int64_t at = k - s.piece.from;
      uint32_t added = 0, lost = 0, over = 0;
      for (int v = 0; v < kVectors; ++v) {
        float* const inner = s.inner[row] + v * V::kWidth;
        float* const error = correction[row] + v * V::kWidth;
        uint32_t out;
        const D p = this->product(this->left(row, at), this->right(v, at), 0, v, k, out);
        const D sum = load_floats<V>(inner), c = load_floats<V>(error);
        const auto add = [&](D x, D addend) { return this->add(x, addend, 0, v, k, out); };
        D total = sum, next = c;
        add_compensated<D>(total, next, p, add);
        const uint32_t counts =
            nonzero_lanes<V>(p) & finite_lanes<V>(p) & finite_lanes<V>(sum) & finite_lanes<V>(c);
        added |= counts << (v * V::kWidth);
        lost |= (counts & equal_lanes<V>(total, sum) & equal_lanes<V>(next, c)) << (v * V::kWidth);
        over |= out << (v * V::kWidth);
        store_floats<V>(inner, total);
        store_floats<V>(error, next);
      }
      put_step(s.piece, row, at, added, lost, over);
    }
  }
  void close(int64_t row) { std::fill(correction[row], correction[row] + kPanel, 0.0f); }
};

#if defined(__AVX512F__)
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
    return acc.rounding == kMode && acc.has_running_sum() && acc.has_product == Product::kRounds &&
           Sum::fits(acc.fmt, 0) && Product::fits(acc.product, acc.product_rounding);
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
#endif

}  // namespace
}  // namespace lpk
