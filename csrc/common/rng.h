// Counter-based random bits: word(seed, site, row, col, w) is a pure function, so a draw does not
// depend on threads, tiles or backend. The constants and the key schedule are pinned by
// tests/rng_vectors.json.
//
// mix64 is the finaliser of splitmix64 (Steele, Lea, Flood 2014), mix32 "lowbias32" (Wellons 2018),
// Philox4x32-10 from Salmon et al. 2011. A word serves four draws of up to 8 bits, two of up to 16,
// or one of up to 32.
#pragma once

#include <cstdint>

#include "format.h"

namespace lpk {

enum class Rng : int32_t { kFast = 0, kPhilox = 1 };

enum Site : uint32_t {
  kSiteSum = 0,
  kSiteProduct = 1,
  kSiteOuter = 2,
  kSiteBias = 3,
  kSiteQuantize = 4,
  kSiteOutput = 5,
};

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

LPK_HD uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// x >> 16, which a vector may do on another port than shifts (csrc/cpu/lanes/avx512.h).
template <class U>
struct UpperHalf {
  LPK_HD static U of(U x) { return x >> 16; }
};

// U: uint32_t or a vector of them.
template <class U>
LPK_HD U mix32(U x) {
  x ^= UpperHalf<U>::of(x);
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= UpperHalf<U>::of(x);
  return x;
}

// The seed of one use (a layer's input, its fprop, ...) from the seed of the call. Role 0 is the
// call itself.
LPK_HD uint64_t derive_seed(uint64_t seed, uint64_t role) {
  return role == 0 ? seed : mix64(seed + role * kGolden);
}

LPK_HD uint64_t site_base(uint64_t seed, uint32_t site) { return mix64(seed ^ mix64(site + 1)); }

// A keyed permutation of the column's lower 32 bits: no two of 2^32 columns share their draws.
LPK_HD uint32_t column_key(uint64_t base, uint64_t col) {
  uint64_t key = mix64(base + kGolden);
  if ((col >> 32) != 0) key = mix64(key + (col >> 32) * kGolden);
  const uint32_t low = static_cast<uint32_t>(col) + static_cast<uint32_t>(key);
  return mix32(mix32(low) ^ static_cast<uint32_t>(key >> 32));
}

// The two keys of a row; words from 2^32 on open a stream of their own.
struct RowKey {
  uint32_t add;
  uint32_t flip;
};

LPK_HD RowKey row_key(uint64_t base, uint64_t row, uint64_t word) {
  uint64_t stream = mix64(base + 2 * row * kGolden);
  if ((word >> 32) != 0) stream = mix64(stream + (word >> 32) * kGolden);
  return {static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
}

template <class U>
LPK_HD U fast_word(U column, U row_add, U row_flip, uint32_t word) {
  return mix32(column + (mix32(row_add + word) ^ row_flip));
}

// Philox4x32-10: four words for each value of the counter.
struct PhiloxBlock {
  uint32_t word[4];
};

LPK_HD PhiloxBlock philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0,
                          uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The last word of the counter: the site, and the bits of the ids beyond 32.
LPK_HD uint32_t philox_high_counter(uint32_t site, uint64_t row, uint64_t col, uint64_t quad) {
  return site | static_cast<uint32_t>((row >> 32) & 0x1ff) << 4 |
         static_cast<uint32_t>((col >> 32) & 0x1ff) << 13 |
         static_cast<uint32_t>((quad >> 32) & 0x3ff) << 22;
}

// The block that holds words 4 quad .. 4 quad + 3.
LPK_HD PhiloxBlock philox_block(uint64_t seed, uint32_t site, uint64_t row, uint64_t col,
                                uint64_t quad) {
  return philox(static_cast<uint32_t>(quad), static_cast<uint32_t>(row), static_cast<uint32_t>(col),
                philox_high_counter(site, row, col, quad), static_cast<uint32_t>(seed),
                static_cast<uint32_t>(seed >> 32));
}

// Word `word` of its block, by choices: an index would put the block into memory on a GPU.
LPK_HD uint32_t philox_word(uint64_t seed, uint32_t site, uint64_t row, uint64_t col,
                            uint64_t word) {
  const PhiloxBlock block = philox_block(seed, site, row, col, word >> 2);
  const uint32_t low = (word & 1) != 0 ? block.word[1] : block.word[0];
  const uint32_t high = (word & 1) != 0 ? block.word[3] : block.word[2];
  return (word & 2) != 0 ? high : low;
}

LPK_HD uint32_t random_word(Rng rng, uint64_t seed, uint32_t site, uint64_t row, uint64_t col,
                            uint64_t word) {
  if (rng == Rng::kPhilox) return philox_word(seed, site, row, col, word);
  const uint64_t base = site_base(seed, site);
  const RowKey key = row_key(base, row, word);
  return fast_word(column_key(base, col), key.add, key.flip, static_cast<uint32_t>(word));
}

// How draws of `random_bits` lie in words: draw k is field k % per_word of word k / per_word, the
// top bits of that field.
struct DrawLayout {
  int32_t per_word_log2;
  int32_t field_bits;
  int32_t random_bits;

  LPK_HD uint64_t word_of(uint64_t k) const { return k >> per_word_log2; }
  LPK_HD int shift_of(uint64_t k) const {
    return static_cast<int>(k & ((1u << per_word_log2) - 1)) * field_bits + field_bits -
           random_bits;
  }
  LPK_HD uint32_t mask() const { return 0xffffffffu >> (32 - random_bits); }
};

LPK_HD DrawLayout draw_layout(int random_bits) {
  if (random_bits <= 8) return {2, 8, random_bits};
  if (random_bits <= 16) return {1, 16, random_bits};
  return {0, 32, random_bits};
}

LPK_HD uint32_t random_draw(Rng rng, uint64_t seed, uint32_t site, uint64_t row, uint64_t col,
                            uint64_t k, int random_bits) {
  const DrawLayout layout = draw_layout(random_bits);
  return (random_word(rng, seed, site, row, col, layout.word_of(k)) >> layout.shift_of(k)) &
         layout.mask();
}

}  // namespace lpk
