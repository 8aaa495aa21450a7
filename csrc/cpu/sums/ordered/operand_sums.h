// Sums of blocks aligned by their operands, for every format, mode and operand, in double.
#pragma once

#include <vector>

#include "common/cores.h"
#include "ordered_sums.h"

namespace lpk {
namespace {

// Steps order[first] .. order[end - 1] of the tile.
struct OperandBlock {
  int64_t first, end;
  int64_t key;     // the position of its draw
  int64_t closes;  // the chunk that ends behind it, or -1
};

class OperandBlocks {
 public:
  std::vector<int64_t> order;
  std::vector<OperandBlock> all;

  // Lists the blocks of the tile, which the driver has ended where a run of interleaved blocks
  // ends. A chunk without products is a block without steps.
  void list(const Tile& t, const Accumulator& acc) {
    order.clear();
    all.clear();
    for_each_span(t, acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
      for (int64_t k = from; k < to;) k = add_run(t, acc, k, to);
      if (closed < 0) return;
      if (from == to) add(0, -1);
      all.back().closes = closed;
    });
  }

 private:
  // The run that holds step k; returns the first step behind it.
  int64_t add_run(const Tile& t, const Accumulator& acc, int64_t k, int64_t to) {
    const int64_t at = t.position_of(k);
    const int64_t start = acc.chunk > 0 ? at / acc.chunk * acc.chunk : 0;
    const int64_t first = at - (at - start) % acc.positions_together();
    const int64_t stop = std::min(first_from(t, k, first + acc.positions_together()), to);
    const int64_t turns = std::min(acc.turns(), (t.position_of(stop - 1) - first) / 2 + 1);
    for (int64_t turn = 0; turn < turns; ++turn) {
      const int64_t before = static_cast<int64_t>(order.size());
      for (int64_t i = k; i < stop; ++i) {
        if (turn_of(t.position_of(i) - first, acc) == turn) order.push_back(i);
      }
      if (before < static_cast<int64_t>(order.size())) add(first + first_of_turn(turn, acc), before);
    }
    return stop;
  }
  // With the steps from order[before] on; none where that is negative.
  void add(int64_t key, int64_t before) {
    const auto end = static_cast<int64_t>(order.size());
    all.push_back({before < 0 ? end : before, end, key, -1});
  }
};

// The binades of the operands as AlignedPlace takes them, laid out as they are.
inline void list_binades(const double* x, int64_t count, double min_normal, double least,
                         std::vector<double>* binades) {
  binades->resize(count);
  for (int64_t i = 0; i < count; ++i)
    (*binades)[i] = counted_binade<double>(flushed<double>(x[i], least), min_normal);
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
  double a_least = 0, b_least = 0;  // factors below are zeros of their sign
  D terms[kMaxBlock][kVectors];

  LPK_HD D place_of(D left, int v, int64_t k) const {
    const D b = load<D>(b_binade + k * kPanel + v * V::kWidth);
    if (t.spread()) return counted_binade<D>(flushed<D>(left, a_least), a_min_normal) * b;
    return L::all(a_binade[this->row * t.depth + k]) * b;
  }

  // A block that is added exactly, or by an adder of AMD's matrix cores.
  void add_to_core(const OperandBlock& block, const int64_t* order, D (&sum)[kVectors]) {
    const bool exact = acc.adder == Adder::kAligned;
    const D nothing = exact && acc.rounding != Rounding::kTowardNegative ? L::all(-0.0) : D{};
    D p[kVectors][kMaxBlock], binades[kVectors][kMaxBlock];
    if (!exact && block.end - block.first < acc.block) {
      for (int v = 0; v < kVectors; ++v) {
        std::fill_n(p[v], acc.block, D{});
        std::fill_n(binades[v], acc.block, D{});
      }
    }
    int count = 0;
    uint32_t any = 0;
    for (int64_t i = block.first; i < block.end; ++i) {
      const int64_t k = order[i];
      const uint32_t lanes = this->present(0, k);
      const int64_t at = exact ? count : t.position_of(k) - block.key;
      any |= lanes;
      for (int v = 0; v < kVectors; ++v) {
        const D left = this->left(0, v, k);
        const D product = 
            flushed<D>(left, a_least) * flushed<D>(this->right(v, k), b_least);
        p[v][at] = this->where(lanes, v, product, nothing);
        binades[v][at] = this->where(lanes, v, place_of(left, v, k), D{});
      }
      ++count;
    }
    if (any == 0) return;
    for (int v = 0; v < kVectors; ++v) {
      const D total = block_of_core<D>(sum[v], p[v], binades[v], count, acc);
      const D r = round_to_float<D>(total, acc.fmt, acc.rounding,
                                    this->draws.of_sum(0, v, block.key), true);
      sum[v] = this->where(any, v, r == 0.0 ? D{} : r, sum[v]);
    }
  }

  void add_block(const OperandBlock& block, const int64_t* order, D (&sum)[kVectors]) {
    if (acc.has_core()) return add_to_core(block, order, sum);
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
    return rounded_block<D>(units, place, acc, this->draws.of_sum(0, v, key));
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
  thread_local std::vector<double> a_binades, b_binades;
  const double a_min = t.exchanged ? acc.right_min_normal : acc.left_min_normal;
  const double b_min = t.exchanged ? acc.left_min_normal : acc.right_min_normal;
  const double a_least = t.exchanged ? acc.right_least : acc.left_least;
  const double b_least = t.exchanged ? acc.left_least : acc.right_least;
  for_each_panel(t, first, last, [&](const double* a, const double* b, int64_t lane) {
    if (lane == first && !t.spread()) list_binades(a, t.rows * t.depth, a_min, a_least, &a_binades);
    list_binades(b, t.depth * kPanel, b_min, b_least, &b_binades);
    for (int64_t row = 0; row < t.rows; ++row) {
      OperandSums<V> sums({t, acc, a, b, row, lane}, end);
      sums.a_binade = a_binades.data();
      sums.b_binade = b_binades.data();
      sums.a_min_normal = a_min;
      sums.a_least = a_least;
      sums.b_least = b_least;
      sums.run(blocks);
    }
  });
  count_products(Tier::kDouble, t.rows * (last - first) * t.depth);
}

}  // namespace
}  // namespace lpk
