// Sums in other orders, for every format and mode, in double: trees, Kahan's sums, aligned blocks.
//
// Vectorised over lanes. One group of rows against one panel at a time. The state of a sum beside
// its running value waits in Tile.planes from one block of k to the next. The driver ends blocks of
// k where a kernel can stop: between the pairs of a tree, between aligned blocks.
#pragma once

#include <vector>

#include "aligned_sums.h"
#include "compensated_sums.h"
#include "pairwise_sums.h"

namespace lpk {
namespace {

// Groups of rows for the sums that need them to hide the latency of a step, then single rows.
template <class V, class Sums, class Single = Sums>
void run_ordered(const Tile& t, const Accumulator& acc) {
  const ChunkEnd end(acc);
  thread_local std::vector<double> a;
  thread_local std::vector<double> b;
  if (!t.spread()) a.assign(t.a, t.a + t.rows * t.depth);
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    const float* from = t.b + lane * t.depth;
    b.assign(from, from + t.depth * kPanel);
    int64_t row = 0;
    for (; row + Sums::kRows <= t.rows; row += Sums::kRows)
      Sums(t, acc, end, a.data(), b.data(), row, lane).run();
    for (; row < t.rows; ++row) Single(t, acc, end, a.data(), b.data(), row, lane).run();
  }
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
