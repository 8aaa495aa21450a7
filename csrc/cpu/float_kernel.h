// Accumulation in float32 lanes, AVX-512, for the formats and modes of float_rules.h: exact for any
// operands, no certificate.
#pragma once

#include "float_rules.h"

namespace lpk {
namespace {

template <class Rule>
constexpr bool kIsSame = false;
template <Rounding kMode>
constexpr bool kIsSame<SameRule<kMode>> = true;

// The products are exact.
struct NoProduct {
  NoProduct(const Format&, int) {}
  static bool fits(const Format&, int) { return true; }
};

template <class Sum, class Product>
struct FloatStep {
  static constexpr bool kProduct = !std::is_same_v<Product, NoProduct>;
  static constexpr bool kStochastic = Sum::kMode == Rounding::kStochastic;
  Sum sum_rule;
  Product product_rule;

  explicit FloatStep(const Accumulator& acc)
      : sum_rule(acc.fmt, acc.random_bits), product_rule(acc.product, acc.random_bits) {}

  LPK_HD __m512 operator()(__m512 sum, __m512 a, __m512 b, const LaneDraws& draws) const {
    if constexpr (kProduct) {
      const __m512 p = product_rule(product_alone<Product::kMode>(a, b), draws);
      if constexpr (kIsSame<Sum>)
        return _mm512_add_round_ps(sum, p, hardware_mode<Sum::kMode>());
      else
        return sum_rule(sum_alone<Sum::kMode>(p, sum), draws);
    } else {
      if constexpr (kIsSame<Sum>)
        return _mm512_fmadd_round_ps(a, b, sum, hardware_mode<Sum::kMode>());
      else
        return sum_rule(sum_of_product<Sum::kMode>(a, b, sum), draws);
    }
  }
};

template <class Step, int kRows, bool kMasked>
void run_float_panel(const Tile& t, const Accumulator& acc, int64_t row, int64_t lane) {
  static_assert(kPanel == 16, "a panel is one vector of float32");
  const Step step(acc);
  const float* a = t.a + row * t.depth;
  const float* b = t.b + lane * t.depth;
  float* inner = t.inner + row * t.stride + lane;
  __m512 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_loadu_ps(inner + r * t.stride);
  PanelDraws<Vec<8>, kRows> draws;
  LaneDraws lanes{};
  if constexpr (Step::kStochastic) {
    draws.start(t, kSiteSum, acc.random_bits, acc.rng, row, lane);
    lanes.mask = _mm512_set1_epi32(static_cast<int>(draws.layout.mask() << 1));
  }
  for_each_span(t, acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
    for (int64_t k = from; k < to; ++k) {
      if constexpr (Step::kStochastic) {
        const uint64_t position = static_cast<uint64_t>(t.k0 + k);
        draws.seek(position);
        const int place = draws.layout.shift_of(position);
        lanes.left = place == 0;
        lanes.shift = _mm_cvtsi32_si128(place - 1);
      }
      const __m512 column = _mm512_loadu_ps(b + k * kPanel);
      for (int r = 0; r < kRows; ++r) {
        if (kMasked && t.absent[(row + r) * t.depth + k]) continue;
        if constexpr (Step::kStochastic) lanes.words = _mm512_loadu_si512(draws.row_words(r));
        sum[r] = step(sum[r], _mm512_set1_ps(a[r * t.depth + k]), column, lanes);
      }
    }
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(inner + r * t.stride, sum[r]);
    if (closed < 0) return;
    close_chunk<Vec<8>, kRows>(t, acc, row, lane, static_cast<uint64_t>(closed));
    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
  });
}

template <class Step, bool kMasked>
void run_float_rows(const Tile& t, const Accumulator& acc) {
  constexpr int kRows = Step::kStochastic ? 4 : 8;
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    int64_t row = 0;
    for (; row + kRows <= t.rows; row += kRows)
      run_float_panel<Step, kRows, kMasked>(t, acc, row, lane);
    for (; row < t.rows; ++row) run_float_panel<Step, 1, kMasked>(t, acc, row, lane);
  }
}

// Runs the tile if these rules fit the accumulator.
template <class Sum, class Product>
bool try_rules(const Tile& t, const Accumulator& acc) {
  if (acc.rounding != Sum::kMode || !Sum::fits(acc.fmt, acc.random_bits)) return false;
  if (!Product::fits(acc.product, acc.random_bits)) return false;
  using Step = FloatStep<Sum, Product>;
  if (t.absent != nullptr) {
    run_float_rows<Step, true>(t, acc);
  } else {
    run_float_rows<Step, false>(t, acc);
  }
  return true;
}

// Products exact, or rounded to nearest in a narrow or wide format.
template <class Sum>
bool try_sum(const Tile& t, const Accumulator& acc) {
  if (!acc.has_product) return try_rules<Sum, NoProduct>(t, acc);
  if (acc.product_rounding != Rounding::kNearestEven) return false;
  return try_rules<Sum, NarrowRule<Rounding::kNearestEven>>(t, acc) ||
         try_rules<Sum, WideRule<Rounding::kNearestEven>>(t, acc);
}

template <Rounding kMode>
bool try_mode(const Tile& t, const Accumulator& acc) {
  return try_sum<NarrowRule<kMode>>(t, acc) || try_sum<WideRule<kMode>>(t, acc) ||
         try_sum<SameRule<kMode>>(t, acc);
}

bool run_float_tile(const Tile& t, const Accumulator& acc) {
  switch (acc.rounding) {
    case Rounding::kNearestEven:
      return try_mode<Rounding::kNearestEven>(t, acc);
    case Rounding::kTowardZero:
      return try_mode<Rounding::kTowardZero>(t, acc);
    case Rounding::kTowardPositive:
      return try_mode<Rounding::kTowardPositive>(t, acc);
    case Rounding::kTowardNegative:
      return try_mode<Rounding::kTowardNegative>(t, acc);
    case Rounding::kStochastic:
      return try_mode<Rounding::kStochastic>(t, acc);
    default:
      return false;
  }
}

}  // namespace
}  // namespace lpk
