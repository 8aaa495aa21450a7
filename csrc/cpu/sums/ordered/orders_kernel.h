// Sums in other orders, for every format and mode, in double: trees, Kahan's sums, aligned blocks.
//
// Vectorised over lanes. One group of rows against one panel at a time. The state of a sum beside
// its running value waits in Tile.planes from one block of k to the next. The driver ends blocks of
// k where a kernel can stop: between the pairs of a tree, between aligned blocks.
#pragma once

#include "common/cores.h"
#include "pairwise_sums.h"

namespace lpk {
namespace {

// Kahan's sums, every operation rounded. Plane 0 holds the errors.
template <class V, int kGroup>
struct CompensatedSums : OrderedSums<V, kGroup> {
  using Base = OrderedSums<V, kGroup>;
  using D = typename V::D;
  using Base::Base, Base::kRows, Base::kVectors, Base::t, Base::acc;

  void run() {
    D sum[kRows][kVectors], error[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = load_floats<V>(this->state(t.inner, r, v));
        error[r][v] = load_floats<V>(this->state(t.planes, r, v));
      }
    }
    const auto span = [&](int64_t from, int64_t to) {
      for (int64_t k = from; k < to; ++k) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const uint32_t lanes = this->present(r, k);
          if (lanes == 0) continue;
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            // There are no draws, because the order has no stochastic rounding.
            const auto add = [&](D x, D addend) __attribute__((always_inline)) {
              return this->add(x, addend, r, v, 0);
            };
            D next = sum[r][v], rest = error[r][v];
            add_compensated<D>(next, rest, this->product(r, v, k), add);
            sum[r][v] = this->where(lanes, v, next, sum[r][v]);
            error[r][v] = this->where(lanes, v, rest, error[r][v]);
          }
        }
      }
    };
    const auto close = [&](int64_t chunk) {
      if (acc.chunk == 0) return;
      this->finish(sum, chunk);
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sum[r][v] = error[r][v] = D{};
      }
    };
    this->for_each_sum(span, close);
    this->store_sums(sum);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) store_floats<V>(this->state(t.planes, r, v), error[r][v]);
    }
  }
};

// Sums of whole blocks of products cut to a common place, as tensor cores form them.
template <class V>
struct AlignedSums : OrderedSums<V, 1> {
  using Base = OrderedSums<V, 1>;
  using D = typename V::D;
  using L = Lanes<D>;
  using Base::Base, Base::kVectors, Base::t, Base::acc;

  // An addend that adds nothing, not even a sign: a zero sum has the sign that all its addends
  // have, or toward_negative minus where one of them has it.
  const bool any_sign = acc.rounding == Rounding::kTowardNegative;
  const D nothing = Lanes<D>::all(any_sign ? 0.0 : -0.0);
  D terms[kMaxBlock][kVectors];

  // round(sum + terms).
  LPK_HD D block_sum(D sum, D largest, int count, int v, int64_t key) {
    if (acc.aligned_bits == 0) return exact_sum(sum, count, v, key);
    const AlignedPlace<D> place(largest, acc.aligned_bits);
    D part[4] = {place.cut(sum), nothing, nothing, nothing};
    int i = 0;
    for (; i + 4 <= count; i += 4) {
      for (int j = 0; j < 4; ++j) part[j] += place.cut(terms[i + j][v]);
    }
    for (; i < count; ++i) part[0] += place.cut(terms[i][v]);
    auto signs = L::bits(sum);
    for (i = 0; any_sign && i < count; ++i) signs |= L::bits(terms[i][v]);
    const D total = (part[0] + part[1]) + (part[2] + part[3]);
    return this->rounded(place.sum_of(total, signs, acc.rounding), 0, v, key);
  }

  __attribute__((noinline)) D exact_sum(D sum, int count, int v, int64_t key) {
    D p[kMaxBlock];
    for (int i = 0; i < count; ++i) p[i] = terms[i][v];
    return this->rounded(exact_block<D>(sum, p, count, acc.rounding), 0, v, key);
  }

  // Products from .. to of one block, whose first position is `key`.
  template <bool kRounds>
  void add_block(int64_t from, int64_t to, int64_t key, D (&sum)[kVectors]) {
    D largest[kVectors];
    for (int v = 0; v < kVectors; ++v) largest[v] = magnitude<D>(sum[v]);
    int count = 0;
    uint32_t any = 0;
    for (int64_t k = from; k < to; ++k) {
      const uint32_t lanes = this->present(0, k);
      if (lanes == 0) continue;
      any |= lanes;
      for (int v = 0; v < kVectors; ++v) {
        const D p = kRounds ? this->rounded_product(0, v, k) : this->exact_product(0, v, k);
        terms[count][v] = this->where(lanes, v, p, nothing);
        largest[v] = L::max(magnitude<D>(terms[count][v]), largest[v]);
      }
      ++count;
    }
    if (any == 0) return;
    for (int v = 0; v < kVectors; ++v) {
      const D total = block_sum(sum[v], largest[v], count, v, key);
      sum[v] = this->where(any, v, total, sum[v]);
    }
  }

  void run() {
    D sum[1][kVectors];
    for (int v = 0; v < kVectors; ++v) sum[0][v] = load_floats<V>(this->state(t.inner, 0, v));
    const auto span = [&](int64_t from, int64_t to) {
      const int64_t start = this->sum_start(t.position_of(from));
      for (int64_t k = from; k < to;) {
        const int64_t at = t.position_of(k);
        const int64_t first = at - (at - start) % acc.block;
        const int64_t stop = std::min(first_from(t, k, first + acc.block), to);
        acc.has_product ? add_block<true>(k, stop, first, sum[0])
                        : add_block<false>(k, stop, first, sum[0]);
        k = stop;
      }
    };
    const auto close = [&](int64_t chunk) {
      if (acc.chunk == 0) return;
      this->finish(sum, chunk);
      for (int v = 0; v < kVectors; ++v) sum[0][v] = D{};
    };
    this->for_each_sum(span, close);
    this->store_sums(sum);
  }
};

// Groups of rows for the sums that need them to hide the latency of a step, then single rows.
template <class V, class Sums, class Single = Sums>
void run_ordered(const Tile& t, const Accumulator& acc) {
  const ChunkEnd end(acc);
  for_each_panel(t, 0, t.lanes, [&](const double* a, const double* b, int64_t lane) {
    int64_t row = 0;
    for (; row + Sums::kRows <= t.rows; row += Sums::kRows)
      Sums({t, acc, a, b, row, lane}, end).run();
    for (; row < t.rows; ++row) Single({t, acc, a, b, row, lane}, end).run();
  });
}

// by_operands: the function that takes blocks aligned by their operands, which is compiled on its
// own.
template <class V>
void accumulate_ordered_tile(const Tile& unmarked, void (*by_operands)(const Tile&)) {
  const Accumulator acc = accumulator_from(unmarked.accumulator);
  if (acc.by_operands) return by_operands(unmarked);
  const Tile t = unmarked.marked();
  if (acc.order == Order::kPairwise) {
    run_ordered<V, PairwiseSums<V>>(t, acc);
  } else if (acc.order == Order::kCompensated) {
    run_ordered<V, CompensatedSums<V, kDoubleRows<V>>, CompensatedSums<V, 1>>(t, acc);
  } else {
    run_ordered<V, AlignedSums<V>>(t, acc);
  }
  count_products(Tier::kDouble, t.rows * t.lanes * t.depth);
}

}  // namespace
}  // namespace lpk
