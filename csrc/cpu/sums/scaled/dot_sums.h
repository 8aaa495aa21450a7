// Sums of segments of codes that are integers of eight bits, by dot products of four bytes
// (AVX512-VNNI): exact, as float32 sums of them are in any order.
//
//   c = sum over four products at a time of (b + 128) a, from -128 sum(a)
// A lies by rows in signed bytes, B by panels in unsigned bytes, four of consecutive products to a
// word. Every segment begins with a new word.
#pragma once

#include <vector>

#include "cpu/sums/certified/operand_range.h"
#include "scaled_kernel.h"

namespace lpk {
namespace {

constexpr int64_t words_of(const Segment& s) { return (s.end - s.first + 3) / 4; }

// The power of two with which an operand's codes may be whole numbers below 128; negative: there is
// none.
inline int byte_shift(const OperandRange& x) {
  return x.plain ? std::min(std::max(0, -x.lowest), 7 - x.highest) : -1;
}

// Rows of A in bytes, and minus 128 times the sum of every segment of a row.
struct DotRows {
  std::vector<int64_t> first_word;  // of each segment, then all words of a row
  std::vector<int8_t> bytes;
  std::vector<int32_t> start;  // segments x rows
  int64_t words() const { return first_word.back(); }

  void list(const ScaledTile& t) {
    first_word.assign(1, 0);
    for (int64_t s = 0; s < t.segment_count; ++s)
      first_word.push_back(words() + words_of(t.segments[s]));
  }
  // Returns false where a code is no whole number.
  bool pack(const ScaledTile& t, float factor) {
    const int64_t stride = 4 * words();
    // Whole vectors are written behind the last segment.
    bytes.resize(t.rows * stride + 4 * kPanel);
    start.resize(t.segment_count * t.rows);
    for (int64_t row = 0; row < t.rows; ++row) {
      Codes wrong{};
      for (int64_t s = 0; s < t.segment_count; ++s) {
        const Segment& segment = t.segments[s];
        int8_t* to = bytes.data() + row * stride + 4 * first_word[s];
        for (int64_t k = segment.first; k < segment.end; k += kPanel, to += kPanel)
          wrong |= pack_codes(t.a + row * t.depth + k, segment.end - k, factor, to);
      }
      if (lane_bits<Bits32<kPanel>>(wrong) != 0) return false;
    }
    for (int64_t row = 0; row < t.rows; ++row) sum_codes(t, row);
    return true;
  }

 private:
  using Codes = Bits32<kPanel>::I;
  using Values = Bits32<kPanel>::F;
  std::vector<int32_t> word_sums_;

  // The first `count` of sixteen values, and zeros. Returns where one is no whole number.
  LPK_HD static Codes pack_codes(const float* from, int64_t count, float factor, int8_t* to) {
    typedef int8_t Bytes __attribute__((vector_size(kPanel)));
    Values x = load<Values>(from) * factor;
    if (count < kPanel) {
      constexpr Codes kPlaces{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
      x = (Values)((Codes)x & (kPlaces < static_cast<int32_t>(count)));
    }
    const Codes code = __builtin_convertvector(x, Codes);
    store(to, __builtin_convertvector(code, Bytes));
    return __builtin_convertvector(code, Values) != x;
  }
  void sum_codes(const ScaledTile& t, int64_t row) {
    const __m512i ones = _mm512_set1_epi32(0x01010101);
    word_sums_.resize(words() + kPanel);
    for (int64_t w = 0; w < words(); w += kPanel) {
      const auto codes = load<__m512i>(bytes.data() + 4 * (row * words() + w));
      store(word_sums_.data() + w, _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, codes));
    }
    for (int64_t s = 0; s < t.segment_count; ++s) {
      int32_t sum = 0;
      for (int64_t w = first_word[s]; w < first_word[s + 1]; ++w) sum += word_sums_[w];
      start[s * t.rows + row] = -128 * sum;
    }
  }
};

// Panels of B in bytes; false where a code is no whole number.
inline bool pack_dot_panels(const ScaledTile& t, int64_t words, float factor,
                            std::vector<uint32_t>* bytes) {
  using Words = Bits32<kPanel>::U;
  using Codes = Bits32<kPanel>::I;
  using Values = Bits32<kPanel>::F;
  bytes->resize(words * t.lanes);
  uint32_t* to = bytes->data();
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    const float* b = t.b + lane * t.depth;
    Codes wrong{};
    for (int64_t s = 0; s < t.segment_count; ++s) {
      for (int64_t k = t.segments[s].first; k < t.segments[s].end; k += 4, to += kPanel) {
        Words word = Words{} + 0x80808080u;
        for (int64_t i = 0; i < 4 && k + i < t.segments[s].end; ++i) {
          const Values x = load<Values>(b + (k + i) * kPanel) * factor;
          const Codes code = __builtin_convertvector(x, Codes);
          wrong |= __builtin_convertvector(code, Values) != x;
          word ^= ((Words)code & 255u) << (8 * i);
        }
        store(to, word);
      }
    }
    if (lane_bits<Bits32<kPanel>>(wrong) != 0) return false;
  }
  return true;
}

struct DotSums {
  using Vector = Bits32<kPanel>::I;
  const ScaledTile& t;
  const DotRows& rows;
  const uint32_t* panels;

  template <int kRows, int kVectors>
  LPK_HD void add(int64_t segment, const Segment& s, int64_t row, int64_t lane,
                  Vector (&c)[kRows][kVectors]) const {
    const int64_t words = rows.words(), first = rows.first_word[segment];
    const int8_t* a = rows.bytes.data() + 4 * (row * words + first);
    const uint32_t* b = panels + lane * words + first * kPanel;
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        c[r][v] = Vector{} + rows.start[segment * t.rows + row + r];
    }
    for (int64_t w = 0; w < words_of(s); ++w, a += 4, b += kPanel) {
      __m512i column[kVectors];
      for (int v = 0; v < kVectors; ++v) column[v] = load<__m512i>(b + v * words * kPanel);
      for (int r = 0; r < kRows; ++r) {
        const __m512i x = _mm512_set1_epi32(load<int32_t>(a + 4 * r * words));
        for (int v = 0; v < kVectors; ++v)
          c[r][v] = (Vector)_mm512_dpbusd_epi32((__m512i)c[r][v], column[v], x);
      }
    }
  }
  LPK_HD static ScaledFloats value(Vector c) {
    return (ScaledFloats) __builtin_convertvector(c, Bits32<kPanel>::F);
  }
};

// Whether 2^shift times a row's scale takes its place, where the sum is 2^-shift times as large.
inline bool takes_shift(const ScaledTile& t, int shift) {
  if (shift == 0) return true;
  const OperandRange &rows = t.row_range, &lanes = t.lane_range;
  return t.scale_order != ScaleOrder::kRight && rows.plain && lanes.plain &&
         rows.lowest - shift >= -126 && rows.lowest + lanes.lowest - shift >= -126 &&
         rows.highest + lanes.highest <= 127;
}

// False, and nothing done, where the codes are no integers of eight bits.
inline bool run_dot_sums(const ScaledTile& tile) {
  BytePanels& panels = *tile.bytes;
  const int a = byte_shift(range_of_a(tile)), b = byte_shift(range_of_b(tile));
  if (panels.state == BytePanels::kRefused || a < 0 || b < 0 || !takes_shift(tile, a + b))
    return false;
  thread_local DotRows rows;
  rows.list(tile);
  if (panels.state == BytePanels::kUnknown) {
    const float factor = static_cast<float>(power_of_two(b));
    const bool fits = pack_dot_panels(tile, rows.words(), factor, &panels.words);
    panels.state = fits ? BytePanels::kMade : BytePanels::kRefused;
    if (!fits) return false;
  }
  if (!rows.pack(tile, static_cast<float>(power_of_two(a)))) return false;
  ScaledTile t = tile;
  thread_local std::vector<float> row_scale;
  if (a + b != 0) {
    const float unit = static_cast<float>(power_of_two(-(a + b)));
    row_scale.resize(t.segment_count * t.rows);
    for (int64_t s = 0; s < t.segment_count; ++s) {
      for (int64_t r = 0; r < t.rows; ++r)
        row_scale[s * t.rows + r] = tile.row_scale[s * tile.row_scale_stride + r] * unit;
    }
    t.row_scale = row_scale.data();
    t.row_scale_stride = t.rows;
  }
  run_scaled_kernel(t, DotSums{t, rows, panels.words.data()});
  return true;
}

}  // namespace
}  // namespace lpk
