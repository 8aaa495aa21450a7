// Where chunks end inside a block of k, and what happens there.
#pragma once

#include <algorithm>

#include "draws.h"

namespace lpk {
namespace {

// Calls span(from, to, closed) for consecutive parts of the block of k: `closed` is the chunk that
// ends with the part, or -1.
template <class Span>
LPK_HD void for_each_span(const Tile& t, int64_t chunk, const Span& span) {
  int64_t k = 0;
  while (k < t.depth) {
    if (chunk == 0) return span(k, t.depth, -1);
    const int64_t index = (t.k0 + k) / chunk;
    const int64_t end = std::min((index + 1) * chunk, t.length) - t.k0;
    span(k, std::min(end, t.depth), end <= t.depth ? index : -1);
    k = end;
  }
}

// outer <- round(outer + inner), inner <- +0 for some rows of one panel.
template <class V, int kRows>
__attribute__((noinline)) void close_chunk(const Tile& t, const Accumulator& acc, int64_t row,
                                           int64_t lane, uint64_t chunk) {
  using D = typename V::D;
  PanelDraws<V, kRows> draws;
  const bool stochastic = acc.rounding == Rounding::kStochastic;
  if (stochastic) {
    draws.start(t, kSiteOuter, acc.random_bits, acc.rng, row, lane);
    draws.seek(chunk);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanel; v += V::kWidth) {
      float* inner = t.inner + (row + r) * t.stride + lane + v;
      float* outer = t.outer + (row + r) * t.stride + lane + v;
      D threshold{};
      if (stochastic) threshold = draws.threshold(r, v, chunk);
      const D total = add_rounded<D>(load_floats<V>(outer), load_floats<V>(inner), acc.outer,
                                     acc.rounding, threshold);
      store_floats<V>(outer, total);
      store_floats<V>(inner, D{});
    }
  }
}

}  // namespace
}  // namespace lpk
