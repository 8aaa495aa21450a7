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
  bool close(const Tile&, int64_t, int64_t, int64_t) const { return false; }
};

}  // namespace
}  // namespace lpk

#include "cpu/isa/chunk_ends.h"

namespace lpk {
namespace {

// outer <- round(outer + inner), inner <- +0 for some rows of one panel. Made once a tile.
class ChunkEnd {
 public:
  explicit ChunkEnd(const Accumulator& acc) : acc_(acc), in_float_(acc) {}

  // Compiled once, and not in every kernel.
  __attribute__((noinline)) void close(const Tile& t, int64_t row, int64_t rows, int64_t lane,
                                       uint64_t chunk) const {
    if (acc_.fmt.one_zero) {
      for (int64_t r = row; r < row + rows; ++r)
        make_zeros_positive(t.inner + r * t.stride + lane, kPanel);
    }
    if (in_float_.close(t, row, rows, lane)) return;
    LPK_ISA::close_in_double(t, acc_, row, rows, lane, chunk);
  }

 private:
  const Accumulator& acc_;
  FloatChunks<Isa> in_float_;
};

}  // namespace
}  // namespace lpk
