// Sums of blocks aligned by their operands, for every format, mode and operand, in double.
#pragma once

#include <vector>

#include "operand_blocks.h"
#include "ordered_sums.h"

namespace lpk {
namespace {

// The binades of the operands as AlignedPlace takes them, laid out as they are.
inline void list_binades(const double* x, int64_t count, double min_normal,
                         std::vector<double>* binades) {
  binades->resize(count);
  for (int64_t i = 0; i < count; ++i) (*binades)[i] = counted_binade<double>(x[i], min_normal);
}

template <class V>
struct OperandSums : OrderedSums<V, 1> {
  using Base = OrderedSums<V, 1>;
  using D = typename V::D;
  using L = Lanes<D>;
  using Base::Base, Base::kVectors, Base::t, Base::acc;

  // The binades of A, null where A is spread, and of one panel of B.
  const double* a_binade = nullptr;
  const double* b_binade = nullptr;
  double a_min_normal = 0;
  D terms[kMaxBlock][kVectors];

  LPK_HD D place_of(D left, int v, int64_t k) const {
    const D b = load<D>(b_binade + k * kPanel + v * V::kWidth);
    if (t.spread()) return counted_binade<D>(left, a_min_normal) * b;
    return L::all(a_binade[this->row * t.depth + k]) * b;
  }

  void add_block(const OperandBlock& block, const int64_t* order, D (&sum)[kVectors]) {
    D largest[kVectors] = {};
    int count = 0;
    uint32_t any = 0;
    for (int64_t i = block.first; i < block.end; ++i) {
      const int64_t k = order[i];
      const uint32_t lanes = this->present(0, k);
      if (lanes == 0) continue;
      any |= lanes;
      for (int v = 0; v < kVectors; ++v) {
        const D left = this->left(0, v, k);
        terms[count][v] = this->where(lanes, v, left * this->right(v, k), D{});
        largest[v] = L::max(this->where(lanes, v, place_of(left, v, k), D{}), largest[v]);
      }
      ++count;
    }
    if (any == 0) return;
    for (int v = 0; v < kVectors; ++v) {
      const AlignedPlace<D> place = operand_place<D>(largest[v], sum[v], acc);
      D units = place.cut(sum[v]);
      for (int i = 0; i < count; ++i) units += place.cut(terms[i][v]);
      sum[v] = this->where(any, v, rounded_units(units, place, v, block.key), sum[v]);
    }
  }
  __attribute__((noinline)) D rounded_units(D units, const AlignedPlace<D>& place, int v,
                                            int64_t key) {
    return rounded_block<D>(units, place, acc, this->sum_threshold(0, v, key));
  }

  void run(const OperandBlocks& blocks) {
    D sum[1][kVectors];
    for (int v = 0; v < kVectors; ++v) sum[0][v] = load_floats<V>(this->state(t.inner, 0, v));
    for (const OperandBlock& block : blocks.all) {
      add_block(block, blocks.order.data(), sum[0]);
      if (block.closes < 0) continue;
      this->finish(sum, block.closes);
      for (int v = 0; v < kVectors; ++v) sum[0][v] = D{};
    }
    this->store_sums(sum);
  }
};

// The lanes first .. last - 1, row by row.
template <class V>
void run_operand_sums(const Tile& t, const Accumulator& acc, const OperandBlocks& blocks,
                      int64_t first, int64_t last) {
  const ChunkEnd end(acc);
  thread_local std::vector<double> a, b, a_binades, b_binades;
  const double a_min = t.exchanged ? acc.right_min_normal : acc.left_min_normal;
  const double b_min = t.exchanged ? acc.left_min_normal : acc.right_min_normal;
  if (!t.spread()) {
    a.assign(t.a, t.a + t.rows * t.depth);
    list_binades(a.data(), t.rows * t.depth, a_min, &a_binades);
  }
  for (int64_t lane = first; lane < last; lane += kPanel) {
    const float* from = t.b + lane * t.depth;
    b.assign(from, from + t.depth * kPanel);
    list_binades(b.data(), t.depth * kPanel, b_min, &b_binades);
    for (int64_t row = 0; row < t.rows; ++row) {
      OperandSums<V> sums(t, acc, end, a.data(), b.data(), row, lane);
      sums.a_binade = a_binades.data();
      sums.b_binade = b_binades.data();
      sums.a_min_normal = a_min;
      sums.run(blocks);
    }
  }
  count_products(Tier::kDouble, t.rows * (last - first) * t.depth);
}

}  // namespace
}  // namespace lpk
