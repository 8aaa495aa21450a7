// The accumulation kernel for one instruction set: included by kernels_<isa>.cpp, compiled with that set's flags.
//
//   inner[r][l] <- round(inner[r][l] + round_product(a[r][k] b[k][l]))    for k in order
//   outer[r][l] <- round_outer(outer[r][l] + inner[r][l]), inner <- +0    at the end of every chunk
//
// Vectorised over lanes, a few rows at a time so that independent chains hide the latency of a step; never over k.
// Two versions: nearest_even in float formats (sum and product), and everything else.
#pragma once

#include <algorithm>

#include "tile.h"
#include "vector.h"

namespace lpk {
namespace {

// Random words of one site for `kRows` rows and one panel of lanes: fetched once per word, used for the draws it holds.
template <class V, int kRows>
struct PanelDraws {
  DrawLayout layout;
  Rng rng;
  uint64_t seed;
  uint32_t site;
  bool lanes_are_rows;
  uint64_t row_id[kRows];
  uint64_t lane_id[kPanel];
  // rng "fast": keys of the side that is the column, and of the side that is the row.
  uint32_t row_column[kRows], row_add[kRows], row_flip[kRows];
  uint32_t lane_column[kPanel], lane_add[kPanel], lane_flip[kPanel];
  uint32_t words[kRows][kPanel];
  uint64_t current_word;
  bool loaded;

  void start(const Tile& t, uint32_t s, int random_bits, Rng generator, int64_t row, int64_t lane) {
    layout = draw_layout(random_bits);
    rng = generator;
    seed = t.seed;
    site = s;
    lanes_are_rows = t.lanes_are_rows;
    loaded = false;
    for (int i = 0; i < kRows; ++i) row_id[i] = t.row_id[row + i];
    for (int i = 0; i < kPanel; ++i) lane_id[i] = t.lane_id[lane + i];
  }

  void make_keys(uint64_t word) {
    const uint64_t base = site_base(seed, site);
    for (int i = 0; i < kRows; ++i) {
      if (lanes_are_rows) {
        row_column[i] = column_key(base, row_id[i]);
      } else {
        const RowKey key = row_key(base, row_id[i], word);
        row_add[i] = key.add;
        row_flip[i] = key.flip;
      }
    }
    for (int i = 0; i < kPanel; ++i) {
      if (lanes_are_rows) {
        const RowKey key = row_key(base, lane_id[i], word);
        lane_add[i] = key.add;
        lane_flip[i] = key.flip;
      } else {
        lane_column[i] = column_key(base, lane_id[i]);
      }
    }
  }

  void fetch_fast(uint64_t word) {
    using U = typename V::U;
    if (!loaded || (word >> 32) != (current_word >> 32)) make_keys(word);
    const uint32_t low = static_cast<uint32_t>(word);
    for (int i = 0; i < kRows; ++i) {
      for (int l = 0; l < kPanel; l += V::kWidth) {
        U w;
        if (lanes_are_rows) {
          w = fast_word<U>(U{} + row_column[i], load<U>(lane_add + l), load<U>(lane_flip + l), low);
        } else {
          const uint32_t mixed = mix32(row_add[i] + low) ^ row_flip[i];
          w = mix32<U>(load<U>(lane_column + l) + mixed);
        }
        store(&words[i][l], w);
      }
    }
  }

  void fetch_philox(uint64_t word) {
    for (int i = 0; i < kRows; ++i) {
      for (int l = 0; l < kPanel; ++l) {
        const uint64_t row = lanes_are_rows ? lane_id[l] : row_id[i];
        const uint64_t col = lanes_are_rows ? row_id[i] : lane_id[l];
        words[i][l] = philox_block(seed, site, row, col, word >> 2).word[word & 3];
      }
    }
  }

  void seek(uint64_t k) {
    const uint64_t word = layout.word_of(k);
    if (loaded && word == current_word) return;
    if (rng == Rng::kPhilox) {
      fetch_philox(word);
    } else {
      fetch_fast(word);
    }
    current_word = word;
    loaded = true;
  }

  LPK_HD typename V::D threshold(int row, int lane, uint64_t k) const {
    using U = typename V::U;
    const U draw = (load<U>(&words[row][lane]) >> layout.shift_of(k)) & layout.mask();
    return stochastic_threshold<typename V::D>(to_doubles<V>(draw), layout.random_bits);
  }
};

// One group of rows against one panel: the state in registers, the loop over k, the closing of chunks.
template <class V, int kRows, bool kNearest, bool kProduct, bool kMasked>
struct PanelKernel {
  using D = typename V::D;
  static constexpr int kVectors = kPanel / V::kWidth;
  using Draws = PanelDraws<V, kRows>;

  const Tile& t;
  const Accumulator& acc;
  int64_t row;
  int64_t lane;

  double* state(double* base, int r, int v) const {
    return base + (row + r) * t.lanes + lane + v * V::kWidth;
  }

  LPK_HD D step(D sum, D a, D b, Draws& sums, Draws& products, int r, int v, uint64_t k) const {
    if constexpr (kNearest) {
      if constexpr (!kProduct) {
        return round_to_float_nearest_even<D>(odd_product_sum<D>(sum, a, b), acc.fmt);
      } else {
        const D p = round_to_float_nearest_even<D>(a * b, acc.product);
        return round_to_float_nearest_even<D>(odd_sum<D>(sum, p), acc.fmt);
      }
    } else {
      D p = a * b;
      if constexpr (kProduct) {
        D threshold{};
        if (acc.product_rounding == Rounding::kStochastic) threshold = products.threshold(r, v * V::kWidth, k);
        p = round_to<D>(p, acc.product, acc.product_rounding, threshold);
      }
      D threshold{};
      if (acc.rounding == Rounding::kStochastic) threshold = sums.threshold(r, v * V::kWidth, k);
      return add_rounded<D>(sum, p, acc.fmt, acc.rounding, threshold);
    }
  }

  __attribute__((noinline)) void close_chunk(D (&sum)[kRows][kVectors], uint64_t chunk) const {
    Draws draws;
    if (acc.rounding == Rounding::kStochastic) {
      draws.start(t, kSiteOuter, acc.random_bits, acc.rng, row, lane);
      draws.seek(chunk);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        D threshold{};
        if (acc.rounding == Rounding::kStochastic) threshold = draws.threshold(r, v * V::kWidth, chunk);
        double* total = state(t.outer, r, v);
        store(total, add_rounded<D>(load<D>(total), sum[r][v], acc.outer, acc.rounding, threshold));
        sum[r][v] = D{};
      }
    }
  }

  // Products k .. end of the block, none of which closes a chunk before the last.
  void run_span(D (&sum)[kRows][kVectors], int64_t from, int64_t to, Draws& sums, Draws& products) const {
    const double* b = t.b + (lane / kPanel) * t.depth * kPanel;
    for (int64_t k = from; k < to; ++k) {
      const uint64_t position = static_cast<uint64_t>(t.k0 + k);
      if constexpr (!kNearest) {
        if (acc.rounding == Rounding::kStochastic) sums.seek(position);
        if (kProduct && acc.product_rounding == Rounding::kStochastic) products.seek(position);
      }
      D column[kVectors];
      for (int v = 0; v < kVectors; ++v) column[v] = load<D>(b + k * kPanel + v * V::kWidth);
      for (int r = 0; r < kRows; ++r) {
        if (kMasked && t.absent[(row + r) * t.depth + k]) continue;
        const D a = Lanes<D>::all(t.a[(row + r) * t.depth + k]);
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] = step(sum[r][v], a, column[v], sums, products, r, v, position);
        }
      }
    }
  }

  void run() const {
    D sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load<D>(state(t.inner, r, v));
    }
    Draws sums, products;
    if constexpr (!kNearest) {
      if (acc.rounding == Rounding::kStochastic) sums.start(t, kSiteSum, acc.random_bits, acc.rng, row, lane);
      if (acc.product_rounding == Rounding::kStochastic) {
        products.start(t, kSiteProduct, acc.random_bits, acc.rng, row, lane);
      }
    }
    int64_t k = 0;
    while (k < t.depth) {
      int64_t end = t.depth;
      bool closes = false;
      if (acc.chunk > 0) {
        const int64_t chunk_end = std::min(((t.k0 + k) / acc.chunk + 1) * acc.chunk, t.length);
        closes = chunk_end - t.k0 <= t.depth;
        end = std::min(t.depth, chunk_end - t.k0);
      }
      run_span(sum, k, end, sums, products);
      if (closes) close_chunk(sum, static_cast<uint64_t>((t.k0 + end - 1) / acc.chunk));
      k = end;
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) store(state(t.inner, r, v), sum[r][v]);
    }
  }
};

template <class V, int kRows, bool kNearest, bool kProduct, bool kMasked>
void run_tile(const Tile& t, const Accumulator& acc) {
  // Panels outside: a panel of B stays in the first cache while the rows pass by.
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    int64_t row = 0;
    for (; row + kRows <= t.rows; row += kRows) {
      PanelKernel<V, kRows, kNearest, kProduct, kMasked>{t, acc, row, lane}.run();
    }
    for (; row < t.rows; ++row) PanelKernel<V, 1, kNearest, kProduct, kMasked>{t, acc, row, lane}.run();
  }
}

template <class V, int kRows, bool kNearest, bool kProduct>
void run_tile(const Tile& t, const Accumulator& acc) {
  if (t.absent != nullptr) {
    run_tile<V, kRows, kNearest, kProduct, true>(t, acc);
  } else {
    run_tile<V, kRows, kNearest, kProduct, false>(t, acc);
  }
}

LPK_HD bool plain_nearest(const Format& f, Rounding rounding) {
  return f.kind == Kind::kFloat && f.man_bits >= 1 && rounding == Rounding::kNearestEven;
}

template <class V>
void accumulate_tile(const Tile& t) {
  const Accumulator acc = accumulator_from(t.accumulator);
  constexpr int kRows = V::kWidth == 8 ? 4 : 2;
  const bool nearest = plain_nearest(acc.fmt, acc.rounding) &&
                       (!acc.has_product || plain_nearest(acc.product, acc.product_rounding));
  if (nearest && acc.has_product) return run_tile<V, kRows, true, true>(t, acc);
  if (nearest) return run_tile<V, kRows, true, false>(t, acc);
  if (acc.has_product) return run_tile<V, 2, false, true>(t, acc);
  run_tile<V, 2, false, false>(t, acc);
}

// Thresholds of V::kWidth consecutive elements from row-major position k on (row = col = 0 in the key).
template <class V>
struct ElementDraws {
  using D = typename V::D;
  using U = typename V::U;

  DrawLayout layout;
  Rng rng;
  uint64_t seed;
  uint32_t site;
  uint64_t base;
  uint32_t column;

  explicit ElementDraws(const RoundBlock& job)
      : layout(draw_layout(static_cast<int>(job.random_bits))),
        rng(static_cast<Rng>(job.rng)),
        seed(job.seed),
        site(job.site),
        base(site_base(job.seed, job.site)),
        column(column_key(base, 0)) {}

  LPK_HD D thresholds(uint64_t k) const {
    // Low halves of the words, and where in its word each draw lies.
    uint32_t low[V::kWidth], shift[V::kWidth];
    for (int l = 0; l < V::kWidth; ++l) {
      low[l] = static_cast<uint32_t>(layout.word_of(k + l));
      shift[l] = static_cast<uint32_t>(layout.shift_of(k + l));
    }
    const uint64_t first = layout.word_of(k);
    const uint64_t last = layout.word_of(k + V::kWidth - 1);
    U word;
    if (rng == Rng::kFast && (first >> 32) == (last >> 32)) {
      const RowKey key = row_key(base, 0, first);
      word = mix32<U>((mix32<U>(load<U>(low) + key.add) ^ key.flip) + column);
    } else {
      uint32_t words[V::kWidth];
      for (int l = 0; l < V::kWidth; ++l) words[l] = random_word(rng, seed, site, 0, 0, layout.word_of(k + l));
      word = load<U>(words);
    }
    const U draw = (word >> load<U>(shift)) & layout.mask();
    return stochastic_threshold<D>(to_doubles<V>(draw), layout.random_bits);
  }
};

// Elementwise rounding: whole vectors, the last one through a padded copy.
template <class V>
void round_block(const RoundBlock& job) {
  using D = typename V::D;
  const Format f = number_format(job.format);
  const Rounding mode = static_cast<Rounding>(job.rounding);
  const bool nearest = plain_nearest(f, mode);
  const ElementDraws<V> draws(job);
  for (int64_t i = 0; i < job.count; i += V::kWidth) {
    const int64_t n = std::min<int64_t>(V::kWidth, job.count - i);
    D x{};
    if (n == V::kWidth) {
      x = load<D>(job.x + i);
    } else {
      std::memcpy(&x, job.x + i, n * sizeof(double));
    }
    D y;
    if (nearest) {
      y = round_to_float_nearest_even<D>(x, f);
    } else {
      D threshold{};
      if (mode == Rounding::kStochastic) threshold = draws.thresholds(job.index + i);
      y = round_to<D>(x, f, mode, threshold);
    }
    if (n == V::kWidth) {
      store(job.y + i, y);
    } else {
      std::memcpy(job.y + i, &y, n * sizeof(double));
    }
  }
}

}  // namespace
}  // namespace lpk
