// Stochastic thresholds by the vector: of one panel of a product, of consecutive elements of a
// tensor.
#pragma once

#include "tile.h"
#include "vector.h"

namespace lpk {
namespace {

// Random words of one site for `kRows` rows and one panel of lanes: fetched once per word, used for
// the draws it holds.
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

// Thresholds of V::kWidth consecutive elements from row-major position k on (row = col = 0 in the
// key).
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
      for (int l = 0; l < V::kWidth; ++l)
        words[l] = random_word(rng, seed, site, 0, 0, layout.word_of(k + l));
      word = load<U>(words);
    }
    const U draw = (word >> load<U>(shift)) & layout.mask();
    return stochastic_threshold<D>(to_doubles<V>(draw), layout.random_bits);
  }
};

}  // namespace
}  // namespace lpk
