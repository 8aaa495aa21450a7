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

// The power of two that makes whole numbers below 128 of an operand; `valid`: whether one does.
struct ByteScale {
  bool valid;
  int shift;
  explicit ByteScale(const OperandRange& x) : shift(x.lowest < 0 ? -x.lowest : 0) {
    valid = x.plain && x.highest + shift <= 7 && shift <= 126;
  }
  float factor() const { return static_cast<float>(power_of_two(shift)); }
};

// Rows of A in bytes, and minus 128 times the sum of every segment of a row.
struct DotRows {
  std::vector<int64_t> first_word;  // of each segment, then all words of a row
  std::vector<int8_t> bytes;
  std::vector<int32_t> start;  // segments x rows
  int64_t words() const { return first_word.back(); }

  void pack(const ScaledTile& t, float factor) {
    first_word.assign(1, 0);
    for (int64_t s = 0; s < t.segment_count; ++s)
      first_word.push_back(words() + words_of(t.segments[s]));
    const int64_t stride = 4 * words();
    bytes.assign(t.rows * stride, 0);
    start.resize(t.segment_count * t.rows);
    for (int64_t row = 0; row < t.rows; ++row) {
      for (int64_t s = 0; s < t.segment_count; ++s) {
        const Segment& segment = t.segments[s];
        const float* x = t.a + row * t.depth + segment.first;
        const int64_t count = segment.end - segment.first;
        int8_t* to = bytes.data() + row * stride + 4 * first_word[s];
        int32_t sum = 0;
        for (int64_t i = 0; i < count; ++i) {
          const int32_t code = static_cast<int32_t>(x[i] * factor);
          to[i] = static_cast<int8_t>(code);
          sum += code;
        }
        start[s * t.rows + row] = -128 * sum;
      }
    }
  }
};

// Panels of B in bytes.
inline void pack_dot_panels(const ScaledTile& t, int64_t words, float factor,
                            std::vector<uint32_t>* bytes) {
  using Words = Bits32<kPanel>::U;
  using Codes = Bits32<kPanel>::I;
  using Values = Bits32<kPanel>::F;
  bytes->resize(words * t.lanes);
  uint32_t* to = bytes->data();
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    const float* b = t.b + lane * t.depth;
    for (int64_t s = 0; s < t.segment_count; ++s) {
      for (int64_t k = t.segments[s].first; k < t.segments[s].end; k += 4, to += kPanel) {
        Words word = Words{} + 0x80808080u;
        for (int64_t i = 0; i < 4 && k + i < t.segments[s].end; ++i) {
          const Values x = load<Values>(b + (k + i) * kPanel) * factor;
          word ^= ((Words) __builtin_convertvector(x, Codes) & 255u) << (8 * i);
        }
        store(to, word);
      }
    }
  }
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
  const ByteScale a(range_of_a(tile)), b(range_of_b(tile));
  if (!a.valid || !b.valid || !takes_shift(tile, a.shift + b.shift)) return false;
  thread_local DotRows rows;
  thread_local std::vector<float> row_scale;
  rows.pack(tile, a.factor());
  BytePanels& panels = *tile.bytes;
  if (!panels.made) pack_dot_panels(tile, rows.words(), b.factor(), &panels.words);
  panels.made = true;
  ScaledTile t = tile;
  if (a.shift + b.shift != 0) {
    const float unit = static_cast<float>(power_of_two(-(a.shift + b.shift)));
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
