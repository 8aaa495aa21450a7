// The universal kernel: every format, every mode, sums made odd in double.
//
// Vectorised over lanes, a few rows at a time so that independent chains hide the latency of a
// step; never over k. Two versions: nearest_even in float formats (sum and product), and everything
// else.
#pragma once

#include <vector>

#include "chunks.h"

namespace lpk {
namespace {

// Which products round how: what a kernel is specialised for. Masked: some taps are absent.
template <bool kNearestOnly, bool kRoundsProduct, bool kMaskedTaps>
struct Variant {
  static constexpr bool kNearest = kNearestOnly;
  static constexpr bool kProduct = kRoundsProduct;
  static constexpr bool kMasked = kMaskedTaps;
};

// The part of a tile that one kernel works on: some rows against one panel, both operands widened
// to double.
template <class V>
struct Panel {
  const Tile& t;
  const Accumulator& acc;
  const double* a;  // rows x depth
  const double* b;  // depth x kPanel
  int64_t row;
  int64_t lane;

  LPK_HD float* state(float* base, int r, int v) const {
    return base + (row + r) * t.stride + lane + v * V::kWidth;
  }
};

// One group of rows against one panel: the state in registers, the loop over k, the closing of
// chunks.
template <class V, int kRows, class Kind>
struct PanelKernel {
  using D = typename V::D;
  static constexpr int kVectors = kPanel / V::kWidth;
  using Draws = PanelDraws<V, kRows>;

  const Panel<V>& p;
  const ChunkEnd<V>& chunk_end;

  LPK_HD D step(D sum, D a, D b, Draws& sums, Draws& products, int r, int v, uint64_t k) const {
    const Accumulator& acc = p.acc;
    if constexpr (Kind::kNearest) {
      if constexpr (!Kind::kProduct) {
        return round_to_float_nearest_even<D>(odd_product_sum<D>(sum, a, b), acc.fmt);
      } else {
        const D product = round_to_float_nearest_even<D>(a * b, acc.product);
        return round_to_float_nearest_even<D>(odd_sum<D>(sum, product), acc.fmt);
      }
    } else {
      D product = a * b;
      if constexpr (Kind::kProduct) {
        D threshold{};
        if (acc.product_rounding == Rounding::kStochastic)
          threshold = products.threshold(r, v * V::kWidth, k);
        product = round_to<D>(product, acc.product, acc.product_rounding, threshold);
      }
      D threshold{};
      if (acc.rounding == Rounding::kStochastic) threshold = sums.threshold(r, v * V::kWidth, k);
      return add_rounded<D>(sum, product, acc.fmt, acc.rounding, threshold);
    }
  }

  // Products from .. to of the block, of which only the last may close a chunk.
  void run_span(D (&sum)[kRows][kVectors], int64_t from, int64_t to, Draws& sums,
                Draws& products) const {
    const Tile& t = p.t;
    for (int64_t k = from; k < to; ++k) {
      const uint64_t position = static_cast<uint64_t>(t.k0 + k);
      if constexpr (!Kind::kNearest) {
        if (p.acc.rounding == Rounding::kStochastic) sums.seek(position);
        if (Kind::kProduct && p.acc.product_rounding == Rounding::kStochastic)
          products.seek(position);
      }
      D column[kVectors];
      for (int v = 0; v < kVectors; ++v) column[v] = load<D>(p.b + k * kPanel + v * V::kWidth);
      for (int r = 0; r < kRows; ++r) {
        if (Kind::kMasked && t.absent[(p.row + r) * t.depth + k]) continue;
        const D a = Lanes<D>::all(p.a[(p.row + r) * t.depth + k]);
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] = step(sum[r][v], a, column[v], sums, products, r, v, position);
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
    if constexpr (!Kind::kNearest) {
      const Accumulator& acc = p.acc;
      if (acc.rounding == Rounding::kStochastic)
        sums.start(t, kSiteSum, acc.random_bits, acc.rng, p.row, p.lane);
      if (acc.product_rounding == Rounding::kStochastic) {
        products.start(t, kSiteProduct, acc.random_bits, acc.rng, p.row, p.lane);
      }
    }
    for_each_span(t, p.acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
      run_span(sum, from, to, sums, products);
      if (closed < 0) return;
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) store_floats<V>(p.state(t.inner, r, v), sum[r][v]);
      }
      chunk_end.template close<kRows>(t, p.row, p.lane, static_cast<uint64_t>(closed));
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sum[r][v] = D{};
      }
    });
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) store_floats<V>(p.state(t.inner, r, v), sum[r][v]);
    }
  }
};

template <class V, int kRows, class Kind>
void run_tile(const Tile& t, const Accumulator& acc) {
  const ChunkEnd<V> end(acc);
  thread_local std::vector<double> a;
  thread_local std::vector<double> b;
  a.assign(t.a, t.a + t.rows * t.depth);
  // Panels outside: a panel of B stays in the first cache while the rows pass by.
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    const float* from = t.b + lane * t.depth;
    b.assign(from, from + t.depth * kPanel);
    int64_t row = 0;
    for (; row + kRows <= t.rows; row += kRows) {
      PanelKernel<V, kRows, Kind>{Panel<V>{t, acc, a.data(), b.data(), row, lane}, end}.run();
    }
    for (; row < t.rows; ++row) {
      PanelKernel<V, 1, Kind>{Panel<V>{t, acc, a.data(), b.data(), row, lane}, end}.run();
    }
  }
}

template <class V, int kRows, bool kNearest, bool kProduct>
void run_tile(const Tile& t, const Accumulator& acc) {
  if (t.absent != nullptr) {
    run_tile<V, kRows, Variant<kNearest, kProduct, true>>(t, acc);
  } else {
    run_tile<V, kRows, Variant<kNearest, kProduct, false>>(t, acc);
  }
}

LPK_HD bool plain_nearest(const Format& f, Rounding rounding) {
  return f.kind == Kind::kFloat && f.man_bits >= 1 && rounding == Rounding::kNearestEven;
}

// kRows rows at a time: as many as the registers hold accumulators for.
template <class V>
void run_double_tile(const Tile& t, const Accumulator& acc) {
  constexpr int kRows = V::kWidth == 8 ? 4 : 2;
  const bool nearest = plain_nearest(acc.fmt, acc.rounding) &&
                       (!acc.has_product || plain_nearest(acc.product, acc.product_rounding));
  if (nearest && acc.has_product) return run_tile<V, kRows, true, true>(t, acc);
  if (nearest) return run_tile<V, kRows, true, false>(t, acc);
  if (acc.has_product) return run_tile<V, 2, false, true>(t, acc);
  run_tile<V, 2, false, false>(t, acc);
}

}  // namespace
}  // namespace lpk
