// The base of every loop over events: the operands of a piece, the sums of a block from piece to
// piece, draws, and the ends of chunks.
#pragma once

#include "event_lanes.h"
#include "events.h"

namespace lpk {
namespace {

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
  Tile key{};  // the keys of the draws

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
  LPK_HD void count_products(int64_t row, uint32_t added, uint32_t lost, uint32_t over) {
    counts.added += __builtin_popcount(added & lanes);
    counts.swamped += __builtin_popcount(lost & lanes);
    overflowed[row] |= static_cast<LaneBits>(over & lanes);
  }
  LPK_HD void count_chunks(int64_t row, uint32_t added, uint32_t lost, uint32_t over) {
    counts.added_chunks += __builtin_popcount(added & lanes);
    counts.swamped_chunks += __builtin_popcount(lost & lanes);
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

// Sums in doubles. kNearest: to nearest_even in a float format with a mantissa; else in any way.
template <class V, bool kNearest, bool kRoundsProducts, int kRows>
struct EventRules {
  using D = typename V::D;
  static constexpr int kVectors = kPanel / V::kWidth;

  EventState& s;
  const Accumulator& acc;
  const Range sum_range, product_range;
  PanelDraws<V, kRows> sums, products;

  explicit EventRules(EventState& state)
      : s(state),
        acc(state.acc),
        sum_range(acc.fmt, acc.rounding),
        product_range(kRoundsProducts ? acc.product : acc.fmt, acc.product_rounding) {}

  LPK_HD bool draws_sums() const { return !kNearest && acc.rounding == Rounding::kStochastic; }
  LPK_HD bool draws_products() const {
    return kRoundsProducts && acc.product_rounding == Rounding::kStochastic;
  }
  // Rows from .. of the block are meant from now on.
  void start(int64_t row) {
    if (draws_sums()) sums.start(s.key, kSiteSum, acc.random_bits, acc.rng, row, 0);
    if (draws_products()) products.start(s.key, kSiteProduct, acc.random_bits, acc.rng, row, 0);
  }

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
    D threshold{};
    if (draws_products()) {
      products.seek(static_cast<uint64_t>(k));
      threshold = products.threshold(r, v * V::kWidth, static_cast<uint64_t>(k));
    }
    over = product_range.template left_by<V>(exact, threshold);
    return round_to<D>(exact, acc.product, acc.product_rounding, threshold);
  }

  LPK_HD D sum_threshold(int r, int v, int64_t k) {
    if (!draws_sums()) return D{};
    sums.seek(static_cast<uint64_t>(k));
    return sums.threshold(r, v * V::kWidth, static_cast<uint64_t>(k));
  }

  // round(x + p), x a value of the format; adds to the lanes in which it leaves the range.
  LPK_HD D add(D x, D p, int r, int v, int64_t k, uint32_t& over) {
    if constexpr (kNearest) {
      const D exact = odd_sum<D>(x, p);
      const D size = magnitude(exact);
      over |= at_least_lanes<V>(size, Lanes<D>::all(acc.fmt.overflow_from)) &
              at_least_lanes<V>(Lanes<D>::all(0x1.fffffffffffffp1023), size);
      return round_to_float_nearest_even<D>(exact, acc.fmt);
    } else {
      return add_in_any_way(x, p, r, v, k, over);
    }
  }
  __attribute__((noinline)) D add_in_any_way(D x, D p, int r, int v, int64_t k, uint32_t& over) {
    const D threshold = sum_threshold(r, v, k);
    over |= sum_range.template left_by<V>(odd_sum<D>(x, p), threshold);
    return add_rounded<D>(x, p, acc.fmt, acc.rounding, threshold);
  }
};

// outer <- round(outer + inner) for one row of the block, with its events; inner <- +0.
template <class V>
__attribute__((noinline)) void close_event_chunk(EventState& s, int64_t row, int64_t chunk) {
  using D = typename V::D;
  const Accumulator& acc = s.acc;
  const Range range(acc.outer, acc.outer_rounding);
  const bool draws = acc.outer_rounding == Rounding::kStochastic;
  PanelDraws<V, 1> words;
  if (draws) {
    words.start(s.key, kSiteOuter, acc.random_bits, acc.rng, row, 0);
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
    over |= range.template left_by<V>(odd_sum<D>(before, inner), threshold) << v;
    store_floats<V>(s.outer[row] + v, after);
    store_floats<V>(s.inner[row] + v, D{});
  }
  s.count_chunks(row, added, lost, over);
}

// Calls span(from, to) for the products of each sum in the piece, and where a chunk ends
// close(chunk).
template <class Span, class Close>
LPK_HD void for_each_event_sum(EventState& s, const Span& span, const Close& close) {
  for (int64_t k = s.from; k < s.to;) {
    const int64_t end = s.chunk_end(k), to = std::min(end, s.to);
    span(k, to);
    if (s.acc.chunk > 0 && to == end) close(k / s.acc.chunk);
    k = to;
  }
}

}  // namespace
}  // namespace lpk
