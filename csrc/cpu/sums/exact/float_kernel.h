// Accumulation in lanes of float32 or double, AVX-512, by the rules of float_lane_rules.h.
//
// Exact for any operands: what a step does to the sum before its rule is in FloatStep. Where the
// operands allow it (plain_sums) the bracket of nearest_even is a plain multiply-add.
#pragma once

#include <vector>

#include "chunks.h"
#include "cpu/sums/certified/operand_range.h"
#include "float_lane_rules.h"

namespace lpk {
namespace {

// The products are exact.
struct NoProduct {
  static constexpr bool kRare = false;
  NoProduct(const Format&, int) {}
  static bool fits(const Format&, int) { return true; }
};

// sum <- sum_rule(a b + sum), or sum_rule(product_rule(a b) + sum). Plain: nearest sums may be
// rounded again as they are. Products of the operands are exact in double.
template <class Sum, class Product, bool kPlain>
struct FloatStep {
  using L = typename Sum::L;
  using F = typename L::F;
  static constexpr bool kProduct = !std::is_same_v<Product, NoProduct>;
  static constexpr Rounding kMode = Sum::kMode;
  static constexpr bool kStochastic = kMode == Rounding::kStochastic;
  static constexpr bool kRare = Sum::kRare || Product::kRare;
  static constexpr bool kSame = std::is_same_v<Sum, SameRule<Sum::kMode>>;
  static constexpr bool kBare =
      kMode != Rounding::kToOdd && (kSame || (kPlain && Sum::kMode == Rounding::kNearestEven));
  // Rows of the largest group: eight where short steps would wait for each other.
  static constexpr int kRows = L::kWidth == 16 && !kProduct && !kStochastic ? 8 : 4;
  Sum sum_rule;
  Product product_rule;

  explicit FloatStep(const Accumulator& acc)
      : sum_rule(acc.fmt, acc.random_bits), product_rule(acc.product, acc.random_bits) {}

  LPK_HD F operator()(F sum, F a, F b, const LaneDraws<L>& draws) const {
    constexpr int kHardware = hardware_mode(Sum::kMode);
    F total;
    if constexpr (kProduct) {
      const F exact = L::kMantissa == 52 ? a * b : product_alone<L, Product::kMode>(a, b);
      const F p = product_rule(exact, draws);
      total = kBare ? L::template add<kHardware>(sum, p) : sum_alone<L, Sum::kMode>(p, sum);
    } else {
      total =
          kBare ? L::template fma<kHardware>(a, b, sum) : sum_of_product<L, Sum::kMode>(a, b, sum);
    }
    if constexpr (kSame) {
      return total;
    } else {
      return sum_rule(total, draws);
    }
  }
};

// A tile and its operands in the lanes' precision.
template <class L>
struct LaneTile {
  const Tile& t;
  const typename L::Scalar* a;
  const typename L::Scalar* b;

  LPK_HD typename L::F left(int64_t row, int64_t k, int v) const {
    return t.spread() ? L::operands(a + t.row_at[row] + t.step_at[k] + v * L::kWidth)
                      : L::one_operand(a + row * t.depth + k);
  }
  LPK_HD typename L::Mask present(int64_t lane, int64_t k, int v) const {
    return static_cast<typename L::Mask>(~t.absent_lanes(lane, k) >> (v * L::kWidth));
  }
};

template <class Step, int kRows, bool kAny>
void run_float_panel(const LaneTile<typename Step::L>& tile, const Accumulator& acc,
                     const Step& step, const ChunkEnd& end, int64_t row, int64_t lane) {
  using L = typename Step::L;
  constexpr int kVectors = kPanel / L::kWidth;
  const Tile& t = tile.t;
  const auto* a = tile.a + row * t.depth;
  const auto* b = tile.b + lane * t.depth;
  float* inner = t.inner + row * t.stride + lane;
  typename L::F sum[kRows][kVectors];
  const auto for_each_sum = [&](const auto& at) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) at(sum[r][v], inner + r * t.stride + v * L::kWidth);
    }
  };
  for_each_sum([](auto& s, const float* p) { s = L::load(p); });
  PanelDraws<Vec<8>, kRows> draws;
  LaneDraws<L> lanes{};
  if constexpr (Step::kStochastic) {
    draws.start(t, kSiteSum, acc, row, lane);
    lanes = LaneDraws<L>(draws.layout, step.sum_rule.draw_place(acc.fmt, acc.random_bits));
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
        typename L::F column[kVectors];
        for (int v = 0; v < kVectors; ++v) column[v] = L::operands(b + k * kPanel + v * L::kWidth);
        for (int r = 0; r < kRows; ++r) {
          if (kAny && t.row_absent(row + r, k)) continue;
          for (int v = 0; v < kVectors; ++v) {
            if constexpr (Step::kStochastic) lanes.take(draws.row_words(r) + v * L::kWidth);
            if constexpr (kAny) {
              const auto next = step(sum[r][v], tile.left(row + r, k, v), column[v], lanes);
              sum[r][v] = L::select(tile.present(lane, k, v), next, sum[r][v]);
            } else {
              sum[r][v] = step(sum[r][v], L::one_operand(a + r * t.depth + k), column[v], lanes);
            }
          }
        }
      }
    }
    for_each_sum([](auto& s, float* p) { L::store(p, s); });
    if (closed < 0) return;
    end.close(t, row, kRows, lane, static_cast<uint64_t>(closed));
    for_each_sum([](auto& s, float*) { s = L::all(0.0); });
  });
}

// The modes that people train with. The others, and rules that are rare, get fewer variants, which
// are slower, not different.
template <Rounding kMode>
constexpr bool kCommon = kMode == Rounding::kNearestEven || kMode == Rounding::kTowardZero ||
                         kMode == Rounding::kStochastic;

template <class Step, bool kAny>
void run_float_rows(const LaneTile<typename Step::L>& tile, const Accumulator& acc) {
  const Tile& t = tile.t;
  const Step step(acc);
  const ChunkEnd end(acc);
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    int64_t row = 0;
    if constexpr (Step::kRows == 8) {
      for (; row + 8 <= t.rows; row += 8) {
        run_float_panel<Step, 8, kAny>(tile, acc, step, end, row, lane);
      }
    }
    for (; row + 4 <= t.rows; row += 4) {
      run_float_panel<Step, 4, kAny>(tile, acc, step, end, row, lane);
    }
    for (; row < t.rows; ++row) run_float_panel<Step, 1, kAny>(tile, acc, step, end, row, lane);
  }
}

template <class Step>
bool run_step(const Tile& t, const Accumulator& acc) {
  using L = typename Step::L;
  const auto run = [&](const typename L::Scalar* a, const typename L::Scalar* b) {
    const LaneTile<L> tile{t, a, b};
    if constexpr (kCommon<Step::kMode> && !Step::kRare) {
      if (t.absent == nullptr && t.lane_absent == nullptr && !t.spread()) {
        run_float_rows<Step, false>(tile, acc);
        return true;
      }
    }
    run_float_rows<Step, true>(tile, acc);
    return true;
  };
  if constexpr (L::kMantissa == 23) {
    return run(t.a, t.b);
  } else {
    thread_local std::vector<double> a, b;
    a.assign(t.a, t.a + t.a_floats());
    b.assign(t.b, t.b + t.lanes * t.depth);
    return run(a.data(), b.data());
  }
}

// nearest_even: float32 sums may be rounded again, whatever they are. Products are exact in
// float32, normal and finite.
inline bool plain_sums(const Accumulator& acc, const OperandRange& a, const OperandRange& b) {
  const AddendRange p = product_range(a, b);
  if (acc.rounding != Rounding::kNearestEven) return false;
  if (!p.plain || p.width > 24 || p.lowest < -126 || p.highest > 127) return false;
  return rounds_twice_safely(single_precision(), addend_range(acc, p).width, acc.fmt.man_bits + 1);
}

// Runs the tile if these rules fit the accumulator. Rounded products are rounded to nearest.
template <class Sum, class Product = NoProduct>
bool try_rules(const Tile& t, const Accumulator& acc, const OperandRange& a = {},
               const OperandRange& b = {}) {
  constexpr bool kExact = std::is_same_v<Product, NoProduct>;
  if (acc.has_product == kExact || !Sum::fits(acc.fmt, acc.random_bits)) return false;
  if (!kExact && (acc.product_rounding != Rounding::kNearestEven ||
                  !Product::fits(acc.product, acc.random_bits))) {
    return false;
  }
  // This variant is made only where the bracket costs most: for nearest sums of exact products.
  constexpr bool kBrackets = Sum::kMode == Rounding::kNearestEven && !Sum::kFlushes &&
                             !std::is_same_v<Sum, SameRule<Rounding::kNearestEven>>;
  if constexpr (kBrackets && Sum::L::kMantissa == 23 && kExact) {
    if (plain_sums(acc, a, b)) return run_step<FloatStep<Sum, Product, true>>(t, acc);
  }
  return run_step<FloatStep<Sum, Product, false>>(t, acc);
}

}  // namespace
}  // namespace lpk
