// Draws added to the bits of a sum by a dot product of four bytes, AVX512-VNNI.
#pragma once

#include <algorithm>

#include "common/rng.h"
#include "cpu/lanes/lanes.h"

namespace lpk {
namespace {

// Makes (2 draw + 1) 2^place from draws of up to 8 bits. It is the sum of two terms: the draw's own
// byte times 2^(place + R - 7), which moves the draw to its place, and a constant byte in the other
// half of the word, times the weight that makes it 2^place. So one choice of bits and one dot
// product choose a draw, move it and add it. Weights are signed bytes, so that a byte moves by 0 to
// 6 places: float32 sums of 9 to 15 mantissa bits.
struct DotDraws {
  __m512i words;
  __m512i mask, constant, weights;
  int32_t masks[4], constants[4], weight[4];

  DotDraws() = default;
  DotDraws(const DrawLayout& layout, int place) {
    const int held = std::min(place, 7);
    const int byte = 0xff00 >> layout.random_bits & 0xff;
    const int move = 1 << (place + layout.random_bits - 7);
    for (int field = 0; field < 4; ++field) {
      const int other = 16 - 16 * (field / 2);
      masks[field] = static_cast<int32_t>(static_cast<uint32_t>(byte) << 8 * field);
      constants[field] = 1 << (held + other);
      weight[field] = (move << 8 * field) | (1 << (place - held + other));
    }
  }
  static bool fits(const DrawLayout& layout, int place) {
    const int moved = place + layout.random_bits - 7;
    return layout.random_bits <= 8 && moved >= 0 && moved <= 6;
  }

  LPK_HD void take(const uint32_t* panel_words) { words = _mm512_loadu_si512(panel_words); }
  // The draw begins at this bit of its word.
  LPK_HD void from(int bit) {
    mask = _mm512_set1_epi32(masks[bit >> 3]);
    constant = _mm512_set1_epi32(constants[bit >> 3]);
    weights = _mm512_set1_epi32(weight[bit >> 3]);
  }
  LPK_HD __m512i added_to(__m512i bits) const {
    // (words & mask) | constant
    const __m512i bytes = _mm512_ternarylogic_epi32(words, mask, constant, 0xea);
    return _mm512_dpbusd_epi32(bits, bytes, weights);
  }
};

}  // namespace
}  // namespace lpk
