// The counts of events.h for one instruction set: the operands of a piece of k, the sums of a block
// from piece to piece, draws, and the ends of chunks.
#pragma once

#include <algorithm>
#include <memory>

#include "common/count.h"
#include "cpu/sums/exact/add_kernel.h"
#include "events.h"

namespace lpk {
namespace {

template <class V>
LPK_HD uint32_t nonzero_lanes(typename V::D x) {
  return ((1u << V::kWidth) - 1) & ~equal_lanes<V>(x, typename V::D{});
}

template <class V>
LPK_HD uint32_t finite_lanes(typename V::D x) {
  using D = typename V::D;
  return at_least_lanes<V>(Lanes<D>::all(0x1.fffffffffffffp1023), magnitude<D>(x));
}

// Lanes of finite values that overflow.
template <class V>
LPK_HD uint32_t overflow_lanes(const Overflows& of, typename V::D x, typename V::D threshold) {
  // Few do: values within the ends are rounded within them.
  if (lane_bits<V>((x > of.high) | (x < of.low)) == 0) return 0;
  return lane_bits<V>(of.among(x, threshold)) & finite_lanes<V>(x);
}

// The sums of a block, values of the inner and outer format, and the operands of the piece at hand.
struct EventState {
  const EventArgs& args;
  const Accumulator acc;
  const LaneBits lanes;      // the lanes that are columns
  int64_t from = 0, to = 0;  // the products of the piece
  EventCounts counts{};
  LaneBits overflowed[kEventRows] = {};
  float inner[kEventRows][kPanel] = {}, outer[kEventRows][kPanel] = {};
  float a[kEventRows * kEventDepth];  // rows kEventDepth apart
  float b[kEventDepth * kPanel];
  uint64_t row_id[kEventRows] = {}, lane_id[kPanel] = {};
  TileDraws key{};

  // Code that runs once a block or once a piece is compiled once, and not in every loop.
  __attribute__((noinline)) explicit EventState(const EventBlock& block)
      : args(*block.args),
        acc(accumulator_from(args.accumulator)),
        lanes(static_cast<LaneBits>((1u << block.lanes) - 1)) {
    for (int64_t r = 0; r < block.rows; ++r)
      row_id[r] = static_cast<uint64_t>(args.row_id[block.row + r]);
    for (int64_t l = 0; l < kPanel; ++l) lane_id[l] = static_cast<uint64_t>(block.lane + l);
    key.seed = args.seed;
    key.row_id = row_id;
    key.lane_id = lane_id;
  }

  // The products from .. to; lanes past the edge hold zeros, which count nowhere.
  __attribute__((noinline)) void load(const EventBlock& block, int64_t first, int64_t end) {
    from = first;
    to = end;
    for (int64_t k = from; k < to; ++k) {
      const float* column = args.b + k * args.b_k + block.lane * args.b_col;
      float* packed = b + (k - from) * kPanel;
      for (int64_t l = 0; l < block.lanes; ++l) packed[l] = column[l * args.b_col];
      for (int64_t l = block.lanes; l < kPanel; ++l) packed[l] = 0.0f;
    }
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* row = args.a + (block.row + r) * args.a_row;
      for (int64_t k = from; k < to; ++k) a[r * kEventDepth + k - from] = row[k * args.a_k];
    }
  }

  // One product of a row's sums, or one chunk's sum: the lanes where it was added to a finite sum,
  // where it was lost, and where a value was too large.
  LPK_HD void count(int64_t row, uint32_t added, uint32_t lost, uint32_t over, int64_t* all_added,
                    int64_t* all_lost) {
    *all_added += __builtin_popcount(added & lanes);
    *all_lost += __builtin_popcount(lost & lanes);
    overflowed[row] |= static_cast<LaneBits>(over & lanes);
  }

  __attribute__((noinline)) void store_sums(const EventBlock& block) const {
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* sums = acc.chunk > 0 ? outer[r] : inner[r];
      float* to = args.c + (block.row + r) * args.n + block.lane;
      for (int64_t l = 0; l < block.lanes; ++l)
        to[l] = canonical_float(acc.outer.one_zero ? sums[l] + 0.0f : sums[l]);
    }
  }

  int64_t chunk_end(int64_t k) const {
    return acc.chunk > 0 ? std::min((k / acc.chunk + 1) * acc.chunk, args.k) : args.k;
  }
};

// sum <- round(sum + p), in doubles: p is lost where the sum stays. kNearest: to nearest_even in a
// float format with a mantissa; else in any way.
template <class V, bool kNearest, bool kRoundsProducts, int kRows>
struct SequentialEvents {
  using D = typename V::D;
  static constexpr int kVectors = kPanel / V::kWidth;

  EventState& s;
  const Accumulator& acc;
  const Overflows sum_overflows, product_overflows;
  AccumulatorDraws<V, kRows> draws;

  explicit SequentialEvents(EventState& state)
      : s(state),
        acc(state.acc),
        sum_overflows(acc.fmt, acc.rounding),
        product_overflows(kRoundsProducts ? acc.product : acc.fmt, acc.product_rounding),
        draws(acc) {}

  // Rows from .. of the block are meant from now on.
  void start(int64_t row) { draws.start(s.key, row, 0); }

  void span(int64_t row, int64_t from, int64_t to) {
    D sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = load_floats<V>(s.inner[row + r] + v * V::kWidth);
    }
    for (int64_t k = from; k < to; ++k) {
      const int64_t at = k - s.from;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const D a = left(row + r, at);
        uint32_t added = 0, lost = 0, over = 0;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          uint32_t out;
          const D p = product(a, right(v, at), r, v, k, out);
          const D before = sum[r][v];
          const D after = add(before, p, r, v, k, out);
          uint32_t counts = nonzero_lanes<V>(p) & finite_lanes<V>(before);
          if (kRoundsProducts) counts &= finite_lanes<V>(p);
          added |= counts << (v * V::kWidth);
          lost |= (counts & equal_lanes<V>(after, before)) << (v * V::kWidth);
          over |= out << (v * V::kWidth);
          sum[r][v] = after;
        }
        s.count(row + r, added, lost, over, &s.counts.added, &s.counts.swamped);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        store_floats<V>(s.inner[row + r] + v * V::kWidth, sum[r][v]);
    }
  }

 private:
  LPK_HD D left(int64_t row, int64_t at) const {
    return Lanes<D>::all(s.a[row * kEventDepth + at]);
  }
  LPK_HD D right(int v, int64_t at) const {
    return load_floats<V>(s.b + at * kPanel + v * V::kWidth);
  }

  // The product, rounded where the accumulator says so; sets the lanes in which it was too large.
  LPK_HD D product(D a, D b, int r, int v, int64_t k, uint32_t& over) {
    const D exact = a * b;
    over = 0;
    if constexpr (!kRoundsProducts) return exact;
    return rounded_product(exact, r, v, k, over);
  }
  __attribute__((noinline)) D rounded_product(D exact, int r, int v, int64_t k, uint32_t& over) {
    const D threshold = draws.of_product(r, v, k);
    over = overflow_lanes<V>(product_overflows, exact, threshold);
    return round_to<D>(exact, acc.product, acc.product_rounding, threshold);
  }

  // round(x + p), x a value of the format; adds to the lanes in which it leaves the range.
  LPK_HD D add(D x, D p, int r, int v, int64_t k, uint32_t& over) {
    if constexpr (kNearest) {
      const D exact = odd_sum<D>(x, p);
      const D size = magnitude<D>(exact);
      over |= at_least_lanes<V>(size, Lanes<D>::all(acc.fmt.overflow_from)) &
              at_least_lanes<V>(Lanes<D>::all(0x1.fffffffffffffp1023), size);
      return round_to_float_nearest_even<D>(exact, acc.fmt);
    } else {
      return add_in_any_way(x, p, r, v, k, over);
    }
  }
  __attribute__((noinline)) D add_in_any_way(D x, D p, int r, int v, int64_t k, uint32_t& over) {
    const D threshold = draws.of_sum(r, v, k);
    over |= overflow_lanes<V>(sum_overflows, odd_sum<D>(x, p), threshold);
    return add_rounded<D>(x, p, acc.fmt, acc.rounding, threshold);
  }
};

// outer <- round(outer + inner) for one row of the block, with its events; inner <- +0.
template <class V>
__attribute__((noinline)) void close_event_chunk(EventState& s, int64_t row, int64_t chunk) {
  using D = typename V::D;
  const Accumulator& acc = s.acc;
  const Overflows overflows(acc.outer, acc.outer_rounding);
  const bool draws = acc.outer_rounding == Rounding::kStochastic;
  PanelDraws<V, 1> words;
  if (draws) {
    words.start(s.key, kSiteOuter, acc, row, 0);
    words.seek(static_cast<uint64_t>(chunk));
  }
  uint32_t added = 0, lost = 0, over = 0;
  for (int v = 0; v < kPanel; v += V::kWidth) {
    const D threshold = draws ? words.threshold(0, v, static_cast<uint64_t>(chunk)) : D{};
    const D before = load_floats<V>(s.outer[row] + v);
    D inner = load_floats<V>(s.inner[row] + v);
    if (acc.fmt.one_zero) inner = inner + 0.0;
    const D after = add_rounded<D>(before, inner, acc.outer, acc.outer_rounding, threshold);
    const uint32_t counts =
        nonzero_lanes<V>(inner) & finite_lanes<V>(inner) & finite_lanes<V>(before);
    added |= counts << v;
    lost |= (counts & equal_lanes<V>(after, before)) << v;
    over |= overflow_lanes<V>(overflows, odd_sum<D>(before, inner), threshold) << v;
    store_floats<V>(s.outer[row] + v, after);
    store_floats<V>(s.inner[row] + v, D{});
  }
  s.count(row, added, lost, over, &s.counts.added_chunks, &s.counts.swamped_chunks);
}

// Rows whose chains of additions hide each other's latency.
template <class V>
constexpr int kEventGroup = V::kWidth == 8   ? 4
                            : V::kWidth == 4 ? 2
                                             : 1;

// Rows in groups, the rest one by one.
template <class V, bool kNearest, bool kRoundsProducts>
EventCounts run_events(const EventBlock& block) {
  constexpr int kGroup = kEventGroup<V>;
  using Group = SequentialEvents<V, kNearest, kRoundsProducts, kGroup>;
  using Single = SequentialEvents<V, kNearest, kRoundsProducts, 1>;
  const auto state = std::make_unique<EventState>(block);
  EventState& s = *state;
  const auto group = std::make_unique<Group>(s);
  std::unique_ptr<Single> single;
  if constexpr (kGroup > 1) single = std::make_unique<Single>(s);
  const auto run = [&](auto& sums, int64_t row, int64_t count) {
    sums.start(row);
    for (int64_t k = s.from, to; k < s.to; k = to) {
      const int64_t end = s.chunk_end(k);
      to = std::min(end, s.to);
      sums.span(row, k, to);
      if (s.acc.chunk == 0 || to < end) continue;
      for (int64_t r = row; r < row + count; ++r) close_event_chunk<V>(s, r, k / s.acc.chunk);
    }
  };
  for (int64_t from = 0; from < s.args.k; from = s.to) {
    s.load(block, from, std::min(s.args.k, from + kEventDepth));
    int64_t row = 0;
    for (; row + kGroup <= block.rows; row += kGroup) run(*group, row, kGroup);
    if constexpr (kGroup > 1) {
      for (; row < block.rows; ++row) run(*single, row, 1);
    }
  }
  s.store_sums(block);
  for (const LaneBits over : s.overflowed) s.counts.overflowed += __builtin_popcount(over);
  return s.counts;
}

template <class V>
EventCounts count_block_events(const EventBlock& block) {
  const Accumulator acc = accumulator_from(block.args->accumulator);
  if (plain_nearest(acc.fmt, acc.rounding)) {
    return acc.has_product ? run_events<V, true, true>(block) : run_events<V, true, false>(block);
  }
  return acc.has_product ? run_events<V, false, true>(block) : run_events<V, false, false>(block);
}

}  // namespace
}  // namespace lpk
