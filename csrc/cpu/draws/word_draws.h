// Draws of consecutive elements, a vector of random words at a time: each at the top of a 32-bit
// lane with a one below it, T = (2 draw + 1) 2^(31-R).
#pragma once

#include "cpu/drivers/tile.h"
#include "cpu/lanes/lanes.h"
#include "words.h"

namespace lpk {
namespace {

// V::kWidth words from word `first` on: every lane makes its block of four words and takes one.
// Compiled once, and not in every loop.
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

// kPerWord: draws in a word (1, 2 or 4), so that kPerWord vectors of elements share one of words.
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
  explicit WordDraws(const ElementBlock& job)
      : rng(static_cast<Rng>(job.rng)), seed(job.seed), site(job.site) {
    const int random_bits = static_cast<int>(job.random_bits);
    const uint64_t base = site_base(job.seed, job.site);
    column = column_key(base, 0);
    key = row_key(base, 0, job.index / kPerWord);
    mask = 0xffffffffu << (32 - random_bits);
    one = 0x80000000u >> (random_bits - 1) >> 1;
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
