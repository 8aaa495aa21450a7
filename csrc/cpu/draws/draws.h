// Vectors of stochastic thresholds: for one panel of a product, or for consecutive elements of a
// tensor.
#pragma once

#include <algorithm>

#include "cpu/drivers/tile.h"
#include "words.h"

namespace lpk {
namespace {

// The first position after k with a draw in another random word than k's, at most `to`.
inline int64_t served_by_word(const Tile& t, const DrawLayout& layout, int64_t k, int64_t to) {
  const uint64_t word = layout.word_of(static_cast<uint64_t>(t.position_of(k)));
  if (t.position == nullptr)
    return std::min<int64_t>(to, static_cast<int64_t>((word + 1) << layout.per_word_log2) - t.k0);
  do ++k;
  while (k < to && layout.word_of(static_cast<uint64_t>(t.position_of(k))) == word);
  return k;
}

// Random words of one site for `kRows` rows and one panel of lanes: fetched once per word, used for
// the draws it holds.
template <class V, int kRows>
struct PanelDraws {
  DrawLayout layout{};
  Rng rng = Rng::kFast;
  uint64_t seed;
  uint32_t site;
  bool lanes_are_rows;
  uint64_t row_id[kRows];
  uint64_t lane_id[kPanel];
  // rng "fast": keys of the side that is the column, and of the side that is the row.
  uint32_t row_column[kRows], row_add[kRows], row_flip[kRows];
  uint32_t lane_column[kPanel], lane_add[kPanel], lane_flip[kPanel];
  // Where rows are the rows of the key: the part that a row has in as many words as a vector holds,
  // the first of which is a multiple of that number. One step of the hash makes them all, outside
  // of the loop over the words of the panel.
  uint32_t row_mixed[kRows][kWordLanes];
  uint32_t first_mixed;
  alignas(64) uint32_t words[4][kRows][kPanel];  // rng "philox" makes four at a time
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
    if (!lanes_are_rows) mix_rows(static_cast<uint32_t>(word));
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

  LPK_HD void mix_rows(uint32_t low) {
    first_mixed = low / kWordLanes * kWordLanes;
    uint32_t after[kWordLanes];
    for (int l = 0; l < kWordLanes; ++l) after[l] = first_mixed + static_cast<uint32_t>(l);
    for (int i = 0; i < kRows; ++i)
      store(row_mixed[i], mix32<Words>(load<Words>(after) + row_add[i]) ^ row_flip[i]);
  }

  void fetch_fast(uint64_t word) {
    if (!loaded || (word >> 32) != (current_word >> 32)) make_keys(word);
    mix_fast(static_cast<uint32_t>(word));
  }

  LPK_HD void mix_fast(uint32_t low) {
    if (lanes_are_rows) {
      for (int l = 0; l < kPanel; l += kWordLanes) {
        const Words mixed =
            mix32<Words>(load<Words>(lane_add + l) + low) ^ load<Words>(lane_flip + l);
        for (int i = 0; i < kRows; ++i) store(&words[0][i][l], mix32<Words>(mixed + row_column[i]));
      }
      return;
    }
    if (low - first_mixed >= kWordLanes) mix_rows(low);
    for (int i = 0; i < kRows; ++i) {
      const uint32_t mixed = row_mixed[i][low - first_mixed];
      for (int l = 0; l < kPanel; l += kWordLanes)
        store(&words[0][i][l], mix32<Words>(load<Words>(lane_column + l) + mixed));
    }
  }

  // The four words of one counter at once.
  void fetch_philox(uint64_t word) {
    const uint64_t quad = word >> 2;
    if (loaded && quad == current_word >> 2) return;
    for (int l = 0; l < kPanel; ++l) lane_add[l] = static_cast<uint32_t>(lane_id[l]);
    for (int i = 0; i < kRows; ++i) {
      uint32_t high[kPanel];
      for (int l = 0; l < kPanel; ++l) {
        const uint64_t row = lanes_are_rows ? lane_id[l] : row_id[i];
        const uint64_t col = lanes_are_rows ? row_id[i] : lane_id[l];
        high[l] = philox_high_counter(site, row, col, quad);
      }
      for (int l = 0; l < kPanel; l += kWordLanes) {
        const Words lanes = load<Words>(lane_add + l);
        const Words row = Words{} + static_cast<uint32_t>(row_id[i]);
        Words c[4] = {Words{} + static_cast<uint32_t>(quad), lanes_are_rows ? lanes : row,
                      lanes_are_rows ? row : lanes, load<Words>(high + l)};
        philox_lanes(c, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
        for (int n = 0; n < 4; ++n) store(&words[n][i][l], c[n]);
      }
    }
  }

  __attribute__((noinline)) void seek(uint64_t k) {
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

  // The same, the usual case compiled into the caller's loop, whose sums need not leave their
  // registers then. Returns the words of the first row; those of the next follow.
  LPK_HD const uint32_t* seek_inline(uint64_t k) {
    const uint64_t word = layout.word_of(k);
    if (rng == Rng::kPhilox || !loaded || (word >> 32) != (current_word >> 32)) {
      seek(k);
    } else if (word != current_word) {
      mix_fast(static_cast<uint32_t>(word));
      current_word = word;
    }
    return row_words(0);
  }

  // The words that were sought last, for one row.
  LPK_HD const uint32_t* row_words(int row) const {
    return words[rng == Rng::kPhilox ? current_word & 3 : 0][row];
  }

  LPK_HD typename V::D threshold(int row, int lane, uint64_t k) const {
    using U = typename V::U;
    const U draw = (load<U>(row_words(row) + lane) >> layout.shift_of(k)) & layout.mask();
    return stochastic_threshold<typename V::D>(to_doubles<V>(draw), layout.random_bits);
  }
};

// Thresholds of V::kWidth consecutive elements from row-major position k on (row = col = 0 in the
// key).
template <class V>
struct ElementDraws {
  using D = typename V::D;
  using U = typename V::U;

  DrawLayout layout{};
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
