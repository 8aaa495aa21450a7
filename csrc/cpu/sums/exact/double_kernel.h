// The universal kernel: every format, every mode, sums made odd in double.
//
// Vectorised over lanes, a few rows at a time so that independent chains hide the latency of a
// step; never over k. Sums to nearest in float formats and stochastic sums have kernels of their
// own; the others, and products but to nearest in float formats, round as their mode says at run
// time.
#pragma once

#include <vector>

#include "add_kernel.h"
#include "chunks.h"

namespace lpk {
namespace {

// Products of a step: exact, rounded to nearest in a float format, or rounded in any way.
enum class Products { kExact, kNearest, kAny };

// Lanes of a panel, from lane `first` on, whose bit is set in `marks`: a mask for ?:.
template <class V>
LPK_HD auto marked_lanes(uint32_t marks, int first) {
  if constexpr (V::kWidth == 1) {
    return (marks >> first & 1) != 0;
  } else {
    typename V::I lane;
    for (int i = 0; i < V::kWidth; ++i) lane[i] = int64_t{1} << i;
    return ((lane & static_cast<int64_t>(marks >> first)) != 0);
  }
}

// The part of a tile on which one kernel works: some rows against one panel, with both operands
// widened to double.
template <class V>
struct Panel {
  const Tile& t;
  const Accumulator& acc;
  const double* a;  // rows x depth, unless it is spread
  const double* b;  // depth x kPanel
  int64_t row;
  int64_t lane;

  LPK_HD float* state(float* base, int r, int v) const {
    return base + (row + r) * t.stride + lane + v * V::kWidth;
  }
  LPK_HD typename V::D left(int r, int v, int64_t k) const {
    if (!t.spread()) return Lanes<typename V::D>::all(a[(row + r) * t.depth + k]);
    return load_floats<V>(t.a + t.row_at[row + r] + t.step_at[k] + v * V::kWidth);
  }
};

// The products of one k, rounded in any way: long code, which is compiled once for all kernels and
// not unrolled.
template <class V, int kRows>
__attribute__((noinline)) void round_products(const Panel<V>& p, const PanelDraws<V, kRows>& draws,
                                              int64_t k, uint64_t position,
                                              typename V::D (*to)[kPanel / V::kWidth]) {
  using D = typename V::D;
  const Accumulator& acc = p.acc;
#pragma GCC unroll 1
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 1
    for (int v = 0; v < kPanel / V::kWidth; ++v) {
      D threshold{};
      if (acc.product_rounding == Rounding::kStochastic)
        threshold = draws.threshold(r, v * V::kWidth, position);
      const D product = p.left(r, v, k) * load<D>(p.b + k * kPanel + v * V::kWidth);
      to[r][v] = round_to<D>(product, acc.product, acc.product_rounding, threshold);
    }
  }
}

// The end of a chunk for kRows rows of one panel.
template <class V, int kRows>
void close_rows(const Tile& t, const Accumulator& acc, int64_t row, int64_t lane, uint64_t chunk) {
  using D = typename V::D;
  const bool stochastic = acc.outer_rounding == Rounding::kStochastic;
  PanelDraws<V, kRows> draws;
  if (stochastic) {
    draws.start(t, kSiteOuter, acc, row, lane);
    draws.seek(chunk);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanel; v += V::kWidth) {
      float* inner = t.inner + (row + r) * t.stride + lane + v;
      float* outer = t.outer + (row + r) * t.stride + lane + v;
      D threshold{};
      if (stochastic) threshold = draws.threshold(r, v, chunk);
      const D total = add_rounded<D>(load_floats<V>(outer), load_floats<V>(inner), acc.outer,
                                     acc.outer_rounding, threshold);
      store_floats<V>(outer, total);
      store_floats<V>(inner, D{});
    }
  }
}

// The same for any number of rows.
template <class V>
void close_panel(const Tile& t, const Accumulator& acc, int64_t row, int64_t rows, int64_t lane,
                 uint64_t chunk) {
  const int64_t end = row + rows;
  for (; row + 12 <= end; row += 12) close_rows<V, 12>(t, acc, row, lane, chunk);
  for (; row + 4 <= end; row += 4) close_rows<V, 4>(t, acc, row, lane, chunk);
  for (; row < end; ++row) close_rows<V, 1>(t, acc, row, lane, chunk);
}

// One group of rows against one panel: the state in registers, the loop over k, the closing of
// chunks.
template <class V, int kRows, AddMode kSums, Products kProducts>
struct PanelKernel {
  using D = typename V::D;
  static constexpr int kVectors = kPanel / V::kWidth;
  static constexpr bool kNearest = kSums == AddMode::kNearest;
  static constexpr bool kStochastic = kSums == AddMode::kStochastic;
  static constexpr bool kAnyProducts = kProducts == Products::kAny;
  using Draws = PanelDraws<V, kRows>;

  const Panel<V>& p;
  const ChunkEnd& chunk_end;

  LPK_HD bool draws_products() const {
    return kAnyProducts && p.acc.product_rounding == Rounding::kStochastic;
  }

  LPK_HD D product_of(D a, D b) const {
    if constexpr (kProducts == Products::kNearest) {
      return round_to_float_nearest_even<D>(a * b, p.acc.product);
    } else {
      return a * b;
    }
  }

  // `product` is a b, rounded; a and b count where it is exact.
  LPK_HD D step(D sum, D a, D b, D product, const Draws& sums, int r, int v, uint64_t k) const {
    const Format& fmt = p.acc.fmt;
    if constexpr (kNearest && kProducts == Products::kExact) {
      return round_to_float_nearest_even<D>(odd_product_sum<D>(sum, a, b), fmt);
    } else if constexpr (kNearest) {
      return round_to_float_nearest_even<D>(odd_sum<D>(sum, product), fmt);
    } else if constexpr (kStochastic) {
      const D threshold = sums.threshold(r, v * V::kWidth, k);
      return add_rounded<D>(sum, product, fmt, Rounding::kStochastic, threshold);
    } else {
      return add_rounded<D>(sum, product, fmt, p.acc.rounding, D{});
    }
  }

  // Products from .. to of the block, of which only the last may close a chunk.
  void run_span(D (&sum)[kRows][kVectors], int64_t from, int64_t to, Draws& sums,
                Draws& products) const {
    const Tile& t = p.t;
    for (int64_t k = from; k < to; ++k) {
      const uint64_t position = static_cast<uint64_t>(t.position_of(k));
      if (kStochastic) sums.seek(position);
      if (draws_products()) products.seek(position);
      const uint32_t marks = t.absent_lanes(p.lane, k);
      D column[kVectors];
      for (int v = 0; v < kVectors; ++v) column[v] = load<D>(p.b + k * kPanel + v * V::kWidth);
      [[maybe_unused]] D rounded[kRows][kVectors];
      if constexpr (kAnyProducts) round_products<V, kRows>(p, products, k, position, rounded);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        if (t.row_absent(p.row + r, k)) continue;
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          const D a = p.left(r, v, k);
          const D product = kAnyProducts ? rounded[r][v] : product_of(a, column[v]);
          const D next = step(sum[r][v], a, column[v], product, sums, r, v, position);
          sum[r][v] = marks == 0 ? next : marked_lanes<V>(marks, v * V::kWidth) ? sum[r][v] : next;
        }
      }
    }
  }

  void run() const {
    const Tile& t = p.t;
    D sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load_floats<V>(p.state(t.inner, r, v));
    }
    Draws sums, products;
    const Accumulator& acc = p.acc;
    if (kStochastic) sums.start(t, kSiteSum, acc, p.row, p.lane);
    if (draws_products()) products.start(t, kSiteProduct, acc, p.row, p.lane);
    for_each_span(t, p.acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
      run_span(sum, from, to, sums, products);
      if (closed < 0) return;
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) store_floats<V>(p.state(t.inner, r, v), sum[r][v]);
      }
      chunk_end.close(t, p.row, kRows, p.lane, static_cast<uint64_t>(closed));
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sum[r][v] = D{};
      }
    });
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) store_floats<V>(p.state(t.inner, r, v), sum[r][v]);
    }
  }
};

// Calls body(a, b, lane) for every panel of lanes first .. last - 1, with A, unless it is spread,
// and the panel of B widened to double. A panel of B stays in the first cache while the rows pass
// by.
template <class Body>
void for_each_panel(const Tile& t, int64_t first, int64_t last, const Body& body) {
  thread_local std::vector<double> a, b;
  if (!t.spread()) a.assign(t.a, t.a + t.rows * t.depth);
  for (int64_t lane = first; lane < last; lane += kPanel) {
    const float* from = t.b + lane * t.depth;
    b.assign(from, from + t.depth * kPanel);
    body(a.data(), b.data(), lane);
  }
}

template <class V, int kRows, AddMode kSums, Products kProducts>
void run_double_variant(const Tile& t, const Accumulator& acc) {
  const ChunkEnd end(acc);
  for_each_panel(t, 0, t.lanes, [&](const double* a, const double* b, int64_t lane) {
    int64_t row = 0;
    for (; row + kRows <= t.rows; row += kRows)
      PanelKernel<V, kRows, kSums, kProducts>{Panel<V>{t, acc, a, b, row, lane}, end}.run();
    for (; row < t.rows; ++row)
      PanelKernel<V, 1, kSums, kProducts>{Panel<V>{t, acc, a, b, row, lane}, end}.run();
  });
}

// kRows rows at a time: as many as the registers hold accumulators for.
template <class V>
constexpr int kDoubleRows = V::kWidth == 8 ? 4 : 2;

template <class V, AddMode kSums>
void run_double_sums(const Tile& t, const Accumulator& acc) {
  // Long steps need fewer rows to hide their latency.
  constexpr int kRows = kSums == AddMode::kNearest ? kDoubleRows<V> : std::min(2, kDoubleRows<V>);
  if (!acc.has_product) return run_double_variant<V, kRows, kSums, Products::kExact>(t, acc);
  if constexpr (kSums == AddMode::kNearest) {
    if (plain_nearest(acc.product, acc.product_rounding))
      return run_double_variant<V, kRows, kSums, Products::kNearest>(t, acc);
  }
  run_double_variant<V, kRows, kSums, Products::kAny>(t, acc);
}

template <class V>
void run_double_tile(const Tile& t, const Accumulator& acc) {
  if (plain_nearest(acc.fmt, acc.rounding)) return run_double_sums<V, AddMode::kNearest>(t, acc);
  if (acc.rounding == Rounding::kStochastic)
    return run_double_sums<V, AddMode::kStochastic>(t, acc);
  run_double_sums<V, AddMode::kOther>(t, acc);
}

}  // namespace
}  // namespace lpk
