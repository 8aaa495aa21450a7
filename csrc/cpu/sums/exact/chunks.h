// Where chunks end inside a block of k, and what happens there.
#pragma once

#include <algorithm>

#include "cpu/draws/draws.h"
#if defined(__AVX512F__)
#include "float_rules.h"
#endif

namespace lpk {
namespace {

// The first product of the block, after k, that lies at `limit` or beyond.
inline int64_t first_from(const Tile& t, int64_t k, int64_t limit) {
  if (t.position == nullptr) return std::min(limit - t.k0, t.depth);
  do ++k;
  while (k < t.depth && t.position[k] < limit);
  return k;
}

// Calls span(from, to, closed) for consecutive parts of the block of k: `closed` is the chunk that
// ends with the part, or -1.
//
// A chunk without a product adds +0 to the outer sum. That changes nothing but a sum of -0, once:
// one empty part stands for all such chunks in a row, and those before the first product, where the
// outer sum is still +0, have none.
template <class Span>
LPK_HD void for_each_span(const Tile& t, int64_t chunk, const Span& span) {
  int64_t k = 0;
  int64_t empty = -1;
  // One call of span, so that it is inlined and its sums stay in registers.
  while (k < t.depth || empty >= 0) {
    int64_t end = k;
    int64_t closed = empty;
    if (chunk == 0) {
      end = t.depth;
    } else if (empty >= 0) {
      empty = -1;
    } else {
      const int64_t index = t.position_of(k) / chunk;
      const int64_t following = (index + 1) * chunk;
      end = first_from(t, k, std::min(following, t.length));
      const int64_t next = t.position_of(end);
      if (next >= std::min(following, t.length)) closed = index;
      if (next == t.length ? next > following : next >= following + chunk) empty = index + 1;
    }
    span(k, end, closed);
    k = end;
  }
}

// outer <- round(outer + inner), inner <- +0 for some rows of one panel. Made once a tile.
template <class V>
class ChunkEnd {
  using D = typename V::D;

 public:
  explicit ChunkEnd(const Accumulator& acc)
      : acc_(acc),
        stochastic_(acc.outer_rounding == Rounding::kStochastic)
#if defined(__AVX512F__)
        ,
        in_float_(acc.outer_rounding == Rounding::kNearestEven &&
                  FloatRule::fits(acc.outer, acc.random_bits)),
        rule_(acc.outer, acc.random_bits)
#endif
  {
  }

  // Compiled once, and not in every kernel.
  template <int kRows>
  __attribute__((noinline)) void close(const Tile& t, int64_t row, int64_t lane,
                                       uint64_t chunk) const {
#if defined(__AVX512F__)
    if (in_float_) {
      float* inner = t.inner + row * t.stride + lane;
      float* outer = t.outer + row * t.stride + lane;
      for (int r = 0; r < kRows; ++r, inner += t.stride, outer += t.stride) {
        const __m512 sum = sum_alone<SumLanes, Rounding::kNearestEven>(_mm512_loadu_ps(outer),
                                                                       _mm512_loadu_ps(inner));
        _mm512_storeu_ps(outer, rule_(sum, LaneDraws<SumLanes>{}));
        _mm512_storeu_ps(inner, _mm512_setzero_ps());
      }
      return;
    }
#endif
    close_in_double<kRows>(t, row, lane, chunk);
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
  bool stochastic_;
#if defined(__AVX512F__)
  using SumLanes = RoundedLanes<float>;
  using FloatRule = NarrowRule<SumLanes, Rounding::kNearestEven>;
  bool in_float_;
  FloatRule rule_;
#endif
};

}  // namespace
}  // namespace lpk
