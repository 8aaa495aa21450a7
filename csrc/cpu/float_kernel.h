// Accumulation in float32 lanes, AVX-512, for the formats and modes of float_rules.h.
//
// Exact for any operands: what a step does to the sum before its rule is in FloatStep. Where the
// operands allow it (certificate.h) the bracket of nearest_even is a plain multiply-add.
#pragma once

#include "certificate.h"
#include "chunks.h"

namespace lpk {
namespace {

// The products are exact.
struct NoProduct {
  NoProduct(const Format&, int) {}
  static bool fits(const Format&, int) { return true; }
};

// sum <- sum_rule(a b + sum), or sum_rule(product_rule(a b) + sum). Plain: nearest sums in float32
// may be rounded again as they are, and products of the operands are exact in float32.
template <class Sum, class Product, bool kPlain>
struct FloatStep {
  static constexpr bool kProduct = !std::is_same_v<Product, NoProduct>;
  static constexpr Rounding kMode = Sum::kMode;
  static constexpr bool kStochastic = kMode == Rounding::kStochastic;
  static constexpr bool kSame = std::is_same_v<Sum, SameRule<Sum::kMode>>;
  static constexpr bool kBare =
      kMode != Rounding::kToOdd && (kSame || (kPlain && Sum::kMode == Rounding::kNearestEven));
  Sum sum_rule;
  Product product_rule;

  explicit FloatStep(const Accumulator& acc)
      : sum_rule(acc.fmt, acc.random_bits), product_rule(acc.product, acc.random_bits) {}

  LPK_HD __m512 operator()(__m512 sum, __m512 a, __m512 b, const LaneDraws& draws) const {
    constexpr int kHardware = hardware_mode<Sum::kMode>();
    __m512 total;
    if constexpr (kProduct) {
      const __m512 exact = kPlain ? _mm512_mul_ps(a, b) : product_alone<Product::kMode>(a, b);
      const __m512 p = product_rule(exact, draws);
      total = kBare ? _mm512_add_round_ps(sum, p, kHardware) : sum_alone<Sum::kMode>(p, sum);
    } else {
      total = kBare ? _mm512_fmadd_round_ps(a, b, sum, kHardware)
                    : sum_of_product<Sum::kMode>(a, b, sum);
    }
    if constexpr (kSame) {
      return total;
    } else {
      return sum_rule(total, draws);
    }
  }
};

// What the tile has beyond dense operands without absent taps.
struct AnyTaps {
  const Tile& t;
  int64_t row, lane;
  LPK_HD bool absent(int r, int64_t k) const {
    return t.absent != nullptr && t.absent[(row + r) * t.depth + k] != 0;
  }
  LPK_HD __m512 left(int r, int64_t k) const {
    return t.spread() ? _mm512_loadu_ps(t.a + t.row_at[row + r] + t.step_at[k])
                      : _mm512_set1_ps(t.a[(row + r) * t.depth + k]);
  }
  LPK_HD __mmask16 present(int64_t k) const {
    return t.lane_absent != nullptr ? ~t.lane_absent[lane / kPanel * t.depth + k] : 0xffff;
  }
};

template <class Step, int kRows, bool kAny>
void run_float_panel(const Tile& t, const Accumulator& acc, const Step& step,
                     const ChunkEnd<Vec<8>>& end, int64_t row, int64_t lane) {
  static_assert(kPanel == 16, "a panel is one vector of float32");
  const float* a = t.a + row * t.depth;
  const float* b = t.b + lane * t.depth;
  const AnyTaps any{t, row, lane};
  float* inner = t.inner + row * t.stride + lane;
  __m512 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_loadu_ps(inner + r * t.stride);
  PanelDraws<Vec<8>, kRows> draws;
  LaneDraws lanes{};
  if constexpr (Step::kStochastic) {
    draws.start(t, kSiteSum, acc.random_bits, acc.rng, row, lane);
    lanes = LaneDraws(draws.layout, step.sum_rule.draw_place(acc.fmt, acc.random_bits));
  }
  for_each_span(t, acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
    for (int64_t k = from, served = to; k < to;) {
      if constexpr (Step::kStochastic) {
        draws.seek(static_cast<uint64_t>(t.position_of(k)));
        served = served_by_word(t, draws.layout, k, to);
      }
      for (; k < served; ++k) {
        if constexpr (Step::kStochastic)
          lanes.from(draws.layout.shift_of(static_cast<uint64_t>(t.position_of(k))));
        const __m512 column = _mm512_loadu_ps(b + k * kPanel);
        for (int r = 0; r < kRows; ++r) {
          if (kAny && any.absent(r, k)) continue;
          if constexpr (Step::kStochastic) lanes.take(draws.row_words(r));
          if constexpr (kAny) {
            const __m512 next = step(sum[r], any.left(r, k), column, lanes);
            sum[r] = _mm512_mask_mov_ps(sum[r], any.present(k), next);
          } else {
            sum[r] = step(sum[r], _mm512_set1_ps(a[r * t.depth + k]), column, lanes);
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(inner + r * t.stride, sum[r]);
    if (closed < 0) return;
    end.template close<kRows>(t, row, lane, static_cast<uint64_t>(closed));
    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
  });
}

// The modes that people train with; the others get fewer variants, which are slower, not different.
template <Rounding kMode>
constexpr bool kCommon = kMode == Rounding::kNearestEven || kMode == Rounding::kTowardZero ||
                         kMode == Rounding::kStochastic;

template <class Step, bool kAny>
void run_float_rows(const Tile& t, const Accumulator& acc) {
  const Step step(acc);
  const ChunkEnd<Vec<8>> end(acc);
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    int64_t row = 0;
    if constexpr (kCommon<Step::kMode> && !Step::kStochastic) {
      for (; row + 8 <= t.rows; row += 8) {
        run_float_panel<Step, 8, kAny>(t, acc, step, end, row, lane);
      }
    }
    for (; row + 4 <= t.rows; row += 4) {
      run_float_panel<Step, 4, kAny>(t, acc, step, end, row, lane);
    }
    for (; row < t.rows; ++row) run_float_panel<Step, 1, kAny>(t, acc, step, end, row, lane);
  }
}

template <class Step>
bool run_step(const Tile& t, const Accumulator& acc) {
  if (t.absent != nullptr || t.lane_absent != nullptr || t.spread()) {
    run_float_rows<Step, true>(t, acc);
  } else {
    run_float_rows<Step, false>(t, acc);
  }
  return true;
}

// Runs the tile if these rules fit the accumulator.
template <class Sum, class Product>
bool try_rules(const Tile& t, const Accumulator& acc, const OperandRange& a,
               const OperandRange& b) {
  if (!Sum::fits(acc.fmt, acc.random_bits) || !Product::fits(acc.product, acc.random_bits)) {
    return false;
  }
  // Only where the bracket costs anything: nearest sums, nearest products.
  if constexpr (Sum::kMode == Rounding::kNearestEven) {
    if (plain_sums(acc, a, b)) return run_step<FloatStep<Sum, Product, true>>(t, acc);
  }
  return run_step<FloatStep<Sum, Product, false>>(t, acc);
}

// Products exact, or rounded to nearest in a narrow or wide format.
template <class Sum>
bool try_sum(const Tile& t, const Accumulator& acc, const OperandRange& a, const OperandRange& b) {
  if (!acc.has_product) return try_rules<Sum, NoProduct>(t, acc, a, b);
  if constexpr (kCommon<Sum::kMode> && !std::is_same_v<Sum, NarrowRule<Sum::kMode, false>>) {
    if (acc.product_rounding != Rounding::kNearestEven) return false;
    return try_rules<Sum, NarrowRule<Rounding::kNearestEven>>(t, acc, a, b) ||
           try_rules<Sum, WideRule<Rounding::kNearestEven>>(t, acc, a, b);
  }
  return false;
}

template <Rounding kMode>
bool try_mode(const Tile& t, const Accumulator& acc, const OperandRange& a, const OperandRange& b) {
  return try_sum<NarrowRule<kMode>>(t, acc, a, b) ||
         try_sum<NarrowRule<kMode, false>>(t, acc, a, b) ||
         try_sum<WideRule<kMode>>(t, acc, a, b) || try_sum<SameRule<kMode>>(t, acc, a, b);
}

bool run_float_tile(const Tile& t, const Accumulator& acc, const OperandRange& a,
                    const OperandRange& b) {
  switch (acc.rounding) {
    case Rounding::kNearestEven:
      return try_mode<Rounding::kNearestEven>(t, acc, a, b);
    case Rounding::kNearestAway:
      return try_mode<Rounding::kNearestAway>(t, acc, a, b);
    case Rounding::kTowardZero:
      return try_mode<Rounding::kTowardZero>(t, acc, a, b);
    case Rounding::kTowardPositive:
      return try_mode<Rounding::kTowardPositive>(t, acc, a, b);
    case Rounding::kTowardNegative:
      return try_mode<Rounding::kTowardNegative>(t, acc, a, b);
    case Rounding::kToOdd:
      return try_mode<Rounding::kToOdd>(t, acc, a, b);
    case Rounding::kStochastic:
      return try_mode<Rounding::kStochastic>(t, acc, a, b);
  }
  return false;
}

}  // namespace
}  // namespace lpk
