// Random words by the vector, as many 32-bit lanes as a register holds, and the draws in them: of
// one panel of a product, or of consecutive elements of a tensor.
#pragma once

#include <algorithm>

#include "cpu/drivers/tile.h"
#include "cpu/lanes/lanes.h"

namespace lpk {
namespace {

constexpr int kWordLanes = Isa::kWords;
using Words = Bits32<kWordLanes>::U;

// Philox4x32-10 in every lane (rng.h has the scalar form): c becomes the four words.
LPK_HD void philox_lanes(Words (&c)[4], uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const auto p0 = wide_product<Bits32<kWordLanes>>(c[0], 0xD2511F53u);
    const auto p1 = wide_product<Bits32<kWordLanes>>(c[2], 0xCD9E8D57u);
    c[0] = p1.high ^ c[1] ^ k0;
    c[2] = p0.high ^ c[3] ^ k1;
    c[1] = p1.low;
    c[3] = p0.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

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

  void start(const TileDraws& t, uint32_t s, const Accumulator& acc, int64_t row, int64_t lane) {
    layout = draw_layout(acc.random_bits);
    rng = acc.rng;
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
      if (!loaded || (word >> 32) != (current_word >> 32)) make_keys(word);
      mix_fast(static_cast<uint32_t>(word));
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

// The draws of an accumulator's sums and products, where it draws any.
template <class V, int kRows>
struct AccumulatorDraws {
  using D = typename V::D;
  const Accumulator& acc;
  PanelDraws<V, kRows> sums, products;

  explicit AccumulatorDraws(const Accumulator& accumulator) : acc(accumulator) {}
  LPK_HD bool draws_sums() const { return acc.rounding == Rounding::kStochastic; }
  LPK_HD bool draws_products() const {
    return acc.has_product && acc.product_rounding == Rounding::kStochastic;
  }
  void start(const TileDraws& t, int64_t row, int64_t lane) {
    if (draws_sums()) sums.start(t, kSiteSum, acc, row, lane);
    if (draws_products()) products.start(t, kSiteProduct, acc, row, lane);
  }
  // The thresholds of vector v of row r at a position.
  LPK_HD D of_sum(int r, int v, int64_t k) {
    return draws_sums() ? threshold_at(sums, r, v, static_cast<uint64_t>(k)) : D{};
  }
  LPK_HD D of_product(int r, int v, int64_t k) {
    return draws_products() ? threshold_at(products, r, v, static_cast<uint64_t>(k)) : D{};
  }

 private:
  LPK_HD static D threshold_at(PanelDraws<V, kRows>& draws, int r, int v, uint64_t k) {
    draws.seek(k);
    return draws.threshold(r, v * V::kWidth, k);
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
      : layout(draw_layout(job.random_bits)),
        rng(job.rng),
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

// V::kWidth words of elements from word `first` on: every lane makes its block of four words and
// takes one. Compiled once, and not in every loop.
template <class V>
__attribute__((noinline)) typename V::U philox_words(uint64_t seed, uint32_t site, uint64_t first) {
  using U = typename V::U;
  uint32_t quad[V::kWidth], high[V::kWidth], field[V::kWidth];
  for (int l = 0; l < V::kWidth; ++l) {
    const uint64_t q = (first + static_cast<uint64_t>(l)) >> 2;
    quad[l] = static_cast<uint32_t>(q);
    high[l] = philox_high_counter(site, 0, 0, q);
    field[l] = static_cast<uint32_t>(first + static_cast<uint64_t>(l)) & 3;
  }
  U c[4] = {load<U>(quad), U{}, U{}, load<U>(high)};
  philox_lanes(c, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const U f = load<U>(field);
  const U low = (f & 1) == 0 ? c[0] : c[1];
  const U other = (f & 1) == 0 ? c[2] : c[3];
  return (f & 2) == 0 ? low : other;
}

// Draws of consecutive elements, a vector of random words at a time: each at the top of a 32-bit
// lane with a one below it, T = (2 draw + 1) 2^(31-R). kPerWord: draws in a word (1, 2 or 4), so
// that kPerWord vectors of elements share one of words.
template <class V, int kPerWord>
struct WordDraws {
  using U = typename V::U;

  Rng rng;
  uint64_t seed;
  uint32_t site;
  uint32_t column;
  RowKey key;
  uint32_t mask, one;
  U words{};
  // Where the words of each vector of elements lie, and how far their draws are from the top.
  U lane[kPerWord] = {}, shift[kPerWord] = {};

  // The words of a block of at most 2^32 elements have one key: its first is a multiple of 2^16.
  explicit WordDraws(const ElementBlock& job) : rng(job.rng), seed(job.seed), site(job.site) {
    const uint64_t base = site_base(job.seed, job.site);
    column = column_key(base, 0);
    key = row_key(base, 0, job.index / kPerWord);
    mask = 0xffffffffu << (32 - job.random_bits);
    one = 0x80000000u >> (job.random_bits - 1) >> 1;
    for (int v = 0; v < kPerWord; ++v) {
      uint32_t lanes[V::kWidth], shifts[V::kWidth];
      for (int l = 0; l < V::kWidth; ++l) {
        const int element = v * V::kWidth + l;
        lanes[l] = static_cast<uint32_t>(element / kPerWord);
        shifts[l] = static_cast<uint32_t>(32 - 32 / kPerWord * (element % kPerWord + 1));
      }
      lane[v] = load<U>(lanes);
      shift[v] = load<U>(shifts);
    }
  }

  // V::kWidth random words, from the word of row-major position k on.
  LPK_HD void fetch(uint64_t k) {
    const uint64_t first = k / kPerWord;
    if (rng == Rng::kPhilox) {
      words = philox_words<V>(seed, site, first);
      return;
    }
    uint32_t low[V::kWidth];
    for (int l = 0; l < V::kWidth; ++l) low[l] = static_cast<uint32_t>(l);
    const U word = load<U>(low) + static_cast<uint32_t>(first);
    words = mix32<U>((mix32<U>(word + key.add) ^ key.flip) + column);
  }

  // The draws of the v-th vector of elements that the words serve.
  LPK_HD U draws(int v) const {
    U top = words;
    if constexpr (kPerWord > 1) {
      top = lanes_at<V>(words, lane[v]);
      top = shift_left<V>(top, shift[v]);
    }
    return (top & mask) | one;
  }
};

// Stands for the draws in modes that draw nothing.
template <class V>
struct WithoutDraws {
  explicit WithoutDraws(const ElementBlock&) {}
  LPK_HD void fetch(uint64_t) {}
  LPK_HD typename V::U draws(int) const { return typename V::U{}; }
};

}  // namespace
}  // namespace lpk
