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
      if (before < static_cast<int64_t>(order.size()))
        add(first + first_of_turn(turn, acc), before);
    }
    return stop;
  }
  // With the steps from order[before] on; none where that is negative.
  void add(int64_t key, int64_t before) {
    const auto end = static_cast<int64_t>(order.size());
    all.push_back({before < 0 ? end : before, end, key, -1});
  }
};

// The binades of the operands as AlignedPlace takes them, laid out as they are. Returns the
// largest.
inline double list_binades(const double* x, int64_t count, double min_normal, double least,
                           std::vector<double>* binades) {
  binades->resize(count);
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double binade = counted_binade<double>(flushed<double>(x[i], least), min_normal);
    largest = std::max(largest, binade);
    (*binades)[i] = binade;
  }
  return largest;
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
  __attribute__((noinline)) void add_to_core(const OperandBlock& block, const int64_t* order,
                                             D (&sum)[kVectors]) {
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
        const D product = flushed<D>(left, a_least) * flushed<D>(this->right(v, k), b_least);
        p[v][at] = this->where(lanes, v, product, nothing);
        binades[v][at] = this->where(lanes, v, place_of(left, v, k), D{});
      }
      ++count;
    }
    if (any == 0) return;
    for (int v = 0; v < kVectors; ++v) {
      const int size = exact ? count : acc.block;
      const D total = block_of_core<D>(sum[v], p[v], binades[v], acc.adder, size, false, acc);
      const D r = round_to_float<D>(total, acc.fmt, acc.rounding,
                                    this->draws.of_sum(0, v, block.key), true);
      sum[v] = this->where(any, v, r == 0.0 ? D{} : r, sum[v]);
    }
  }

  // A full block of this adder without absent taps, in registers. Products are below 2^128.
  template <Adder kAdder, int kBlock>
  LPK_HD void add_full(const int64_t* steps, D (&sum)[kVectors]) const {
    constexpr bool kFlushes = kAdder == Adder::kTree || kAdder == Adder::kOpposed;
    const int64_t of_row = this->row * t.depth;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      D p[kBlock], binades[kBlock];
#pragma GCC unroll 16
      for (int i = 0; i < kBlock; ++i) {
        const int64_t at = of_row + steps[i], in_panel = steps[i] * kPanel + v * V::kWidth;
        const D a = L::all(this->a[at]), b = load<D>(this->b + in_panel);
        p[i] = kFlushes ? flushed<D>(a, a_least) * flushed<D>(b, b_least) : a * b;
        binades[i] = L::all(a_binade[at]) * load<D>(b_binade + in_panel);
      }
      D total;
      if constexpr (kAdder == Adder::kAligned) {
        total = exact_or_slow<kBlock>(sum[v], p);
      } else {
        total = block_of_core<D>(sum[v], p, binades, kAdder, kBlock, true, acc);
      }
      // The conversion rounds to nearest even. Every zero is +0.
      sum[v] = converted<D>(converted<typename V::F>(total)) + 0.0;
    }
  }
  // Sums of products are mostly exact in double: then one addition is made odd.
  template <int kBlock>
  LPK_HD D exact_or_slow(D c, const D* p) const {
    D total = p[0];
    auto lost = L::bits(total) & 0;
#pragma GCC unroll 16
    for (int i = 1; i < kBlock; ++i) {
      const D s = total + p[i];
      const D part = s - total;
      lost |= L::bits((total - (s - part)) + (p[i] - part));
      total = s;
    }
    const uint32_t any = lane_bits<V>((lost << 1) != 0);
    return any == 0 ? odd_sum<D>(total, c) : exact_block<D>(c, p, kBlock, acc.rounding);
  }

  // Blocks of one adder, whose full ones the compiler knows.
  template <Adder kAdder, int kBlock>
  void run_core(const OperandBlocks& blocks, D (&sum)[1][kVectors]) {
    const int64_t* order = blocks.order.data();
    for (const OperandBlock& block : blocks.all) {
      if (block.end - block.first == kBlock) {
        add_full<kAdder, kBlock>(order + block.first, sum[0]);
      } else if (block.end > block.first) {
        add_to_core(block, order, sum[0]);
      }
      close(block, sum);
    }
  }
  // False, and nothing done, where taps may be absent or products may be infinite, and of other
  // accumulators than the cores'.
  bool run_full(const OperandBlocks& blocks, double largest, D (&sum)[1][kVectors]) {
    if (t.absent != nullptr || t.lane_absent != nullptr || t.spread() || !(largest < 0x1p126))
      return false;
    const auto is = [&](Adder adder, int block) {
      return acc.adder == adder && acc.block == block;
    };
    if (is(Adder::kFloored, 8)) return run_core<Adder::kFloored, 8>(blocks, sum), true;
    if (is(Adder::kFloored, 4)) return run_core<Adder::kFloored, 4>(blocks, sum), true;
    if (is(Adder::kFlooredHalves, 16))
      return run_core<Adder::kFlooredHalves, 16>(blocks, sum), true;
    if (is(Adder::kTree, 4)) return run_core<Adder::kTree, 4>(blocks, sum), true;
    if (is(Adder::kTree, 2)) return run_core<Adder::kTree, 2>(blocks, sum), true;
    if (is(Adder::kOpposed, 2)) return run_core<Adder::kOpposed, 2>(blocks, sum), true;
    if (is(Adder::kPairs, 4) || is(Adder::kPairsSwapped, 4))
      return run_core<Adder::kPairs, 4>(blocks, sum), true;
    const Format& f = acc.fmt;
    const bool is_float32 = f.man_bits == 23 && f.emin == -126 && f.subnormals &&
                            f.max == 0x1.fffffep127 && f.beyond == HUGE_VAL && !f.one_zero;
    if (acc.aligned_bits > 0 || !is_float32 || !this->nearest) return false;
    if (is(Adder::kAligned, 4)) return run_core<Adder::kAligned, 4>(blocks, sum), true;
    if (is(Adder::kAligned, 2)) return run_core<Adder::kAligned, 2>(blocks, sum), true;
    return false;
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

  LPK_HD void close(const OperandBlock& block, D (&sum)[1][kVectors]) {
    if (block.closes < 0) return;
    this->finish(sum, block.closes);
    for (int v = 0; v < kVectors; ++v) sum[0][v] = D{};
  }

  // largest: no product of binades is larger.
  void run(const OperandBlocks& blocks, double largest) {
    D sum[1][kVectors];
    for (int v = 0; v < kVectors; ++v) sum[0][v] = load_floats<V>(this->state(t.inner, 0, v));
    if (!acc.has_core() || !run_full(blocks, largest, sum)) {
      for (const OperandBlock& block : blocks.all) {
        add_block(block, blocks.order.data(), sum[0]);
        close(block, sum);
      }
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
  double a_largest = 0;
  for_each_panel(t, first, last, [&](const double* a, const double* b, int64_t lane) {
    if (lane == first && !t.spread())
      a_largest = list_binades(a, t.rows * t.depth, a_min, a_least, &a_binades);
    const double b_largest = list_binades(b, t.depth * kPanel, b_min, b_least, &b_binades);
    for (int64_t row = 0; row < t.rows; ++row) {
      OperandSums<V> sums({t, acc, a, b, row, lane}, end);
      sums.a_binade = a_binades.data();
      sums.b_binade = b_binades.data();
      sums.a_min_normal = a_min;
      sums.a_least = a_least;
      sums.b_least = b_least;
      sums.run(blocks, a_largest * b_largest);
    }
  });
  count_products(Tier::kDouble, t.rows * (last - first) * t.depth);
}

}  // namespace
}  // namespace lpk
