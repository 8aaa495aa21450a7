// Where chunks end inside a block of k, and what happens there.
#pragma once

#include <algorithm>

#include "cpu/draws/draws.h"

namespace lpk {
namespace {

// The first product of the block, after k, that lies at `limit` or beyond.
inline int64_t first_from(const Tile& t, int64_t k, int64_t limit) {
  if (t.position == nullptr) return std::min(limit - t.k0, t.depth);
  do ++k;
  while (k < t.depth && t.position[k] < limit);
  return k;
}

// Consecutive parts of the block of k: products from .. to, and `closed`, the chunk that ends with
// the part, or -1.
//
// A chunk without a product adds +0 to the outer sum. That changes nothing but a sum of -0, once:
// one empty part stands for all such chunks in a row. Chunks before the first product have none,
// because the outer sum is still +0 there.
struct Spans {
  int64_t from = 0, to = 0, closed = -1;
  int64_t empty = -1;

  // The next part; false after the last. Compiled once, and not in every kernel.
  __attribute__((noinline)) bool next(const Tile& t, int64_t chunk) {
    from = to;
    if (from >= t.depth && empty < 0) return false;
    closed = empty;
    if (chunk == 0) {
      to = t.depth;
    } else if (empty >= 0) {
      empty = -1;
    } else {
      const int64_t index = t.position_of(from) / chunk;
      const int64_t following = (index + 1) * chunk;
      to = first_from(t, from, std::min(following, t.length));
      const int64_t after = t.position_of(to);
      if (after >= std::min(following, t.length)) closed = index;
      if (after == t.length ? after > following : after >= following + chunk) empty = index + 1;
    }
    return true;
  }
};

// Calls span(from, to, closed) for each of them.
template <class Span>
LPK_HD void for_each_span(const Tile& t, int64_t chunk, const Span& span) {
  Spans part;
  // One call of span, so that it is inlined and its sums stay in registers.
  while (part.next(t, chunk)) span(part.from, part.to, part.closed);
}

// Closes chunks in float32 lanes, where the instruction set can and the outer format fits.
template <class I>
struct FloatChunks {
  explicit FloatChunks(const Accumulator&) {}
  template <int kRows>
  bool close(const Tile&, int64_t, int64_t) const {
    return false;
  }
};

}  // namespace
}  // namespace lpk

#include "cpu/isa/chunks_in_float.h"

namespace lpk {
namespace {

// outer <- round(outer + inner), inner <- +0 for some rows of one panel. Made once a tile.
template <class V>
class ChunkEnd {
  using D = typename V::D;

 public:
  explicit ChunkEnd(const Accumulator& acc)
      : acc_(acc),
        stochastic_(acc.outer_rounding == Rounding::kStochastic),
        one_zero_(acc.fmt.one_zero),
        in_float_(acc) {}

  // Compiled once, and not in every kernel.
  template <int kRows>
  __attribute__((noinline)) void close(const Tile& t, int64_t row, int64_t lane,
                                       uint64_t chunk) const {
    if (one_zero_) {
      for (int r = 0; r < kRows; ++r)
        make_zeros_positive(t.inner + (row + r) * t.stride + lane, kPanel);
    }
    if (!in_float_.template close<kRows>(t, row, lane)) close_in_double<kRows>(t, row, lane, chunk);
  }

 private:
  template <int kRows>
  __attribute__((noinline)) void close_in_double(const Tile& t, int64_t row, int64_t lane,
                                                 uint64_t chunk) const {
    PanelDraws<V, kRows> draws;
    if (stochastic_) {
      draws.start(t, kSiteOuter, acc_.random_bits, acc_.rng, row, lane);
      draws.seek(chunk);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kPanel; v += V::kWidth) {
        float* inner = t.inner + (row + r) * t.stride + lane + v;
        float* outer = t.outer + (row + r) * t.stride + lane + v;
        D threshold{};
        if (stochastic_) threshold = draws.threshold(r, v, chunk);
        const D total = add_rounded<D>(load_floats<V>(outer), load_floats<V>(inner), acc_.outer,
                                       acc_.outer_rounding, threshold);
        store_floats<V>(outer, total);
        store_floats<V>(inner, D{});
      }
    }
  }

  const Accumulator& acc_;
  bool stochastic_, one_zero_;
  FloatChunks<Isa> in_float_;
};

}  // namespace
}  // namespace lpk
