// Sums of segments of codes that are integers of eight bits, by dot products of four bytes
// (AVX512-VNNI): exact, as float32 sums of them are in any order.
//
//   c = sum over four products at a time of (a + 128) b, from -128 sum(b)
// A lies by rows in unsigned bytes, B by panels in signed bytes, four of consecutive products to a
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

using DotLanes = Bits32<kPanel>;

// Where the words of every segment begin, then all words of a row or lane.
struct DotWords {
  std::vector<int64_t> first;
  int64_t all() const { return first.back(); }

  void list(const ScaledTile& t) {
    first.assign(1, 0);
    for (int64_t s = 0; s < t.segment_count; ++s) first.push_back(all() + words_of(t.segments[s]));
  }
};

// The first `count` of sixteen values in bytes, plus 128; the others become codes of zero. Returns
// where one is no whole number.
LPK_HD DotLanes::I pack_codes(const float* from, int64_t count, float factor, uint8_t* to) {
  using Codes = DotLanes::I;
  using Values = DotLanes::F;
  Values x{};
  if (count >= kPanel) {
    x = load<Values>(from);
  } else {
    std::memcpy(&x, from, count * sizeof(float));
  }
  x *= factor;
  const Codes code = __builtin_convertvector(x, Codes);
  store(to, words_as_bytes<DotLanes>((DotLanes::U)(code + 128)));
  return __builtin_convertvector(code, Values) != x;
}

// Rows of A in bytes; false where a code is no whole number.
inline bool pack_dot_rows(const ScaledTile& t, const DotWords& words, float factor,
                          std::vector<uint8_t>* bytes) {
  const int64_t stride = 4 * words.all();
  // Whole vectors are written behind the last segment.
  bytes->resize(t.rows * stride + kPanel);
  for (int64_t row = 0; row < t.rows; ++row) {
    DotLanes::I wrong{};
    for (int64_t s = 0; s < t.segment_count; ++s) {
      const Segment& segment = t.segments[s];
      uint8_t* to = bytes->data() + row * stride + 4 * words.first[s];
      for (int64_t k = segment.first; k < segment.end; k += kPanel, to += kPanel)
        wrong |= pack_codes(t.a + row * t.a_stride + k, segment.end - k, factor, to);
    }
    if (lane_bits<DotLanes>(wrong) != 0) return false;
  }
  return true;
}

// Panels of B in bytes, and -128 times the sums of every segment; false where a code is no whole
// number.
inline bool pack_dot_panels(const ScaledTile& t, const DotWords& words, BytePanels* panels) {
  using Codes = DotLanes::I;
  using Values = DotLanes::F;
  const auto factor = static_cast<float>(power_of_two(panels->shift));
  panels->words.resize(words.all() * t.lanes);
  panels->start.resize(t.segment_count * t.lanes);
  uint32_t* to = panels->words.data();
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    const float* b = t.b + lane * t.depth;
    Codes wrong{};
    for (int64_t s = 0; s < t.segment_count; ++s) {
      Codes sum{};
      for (int64_t k = t.segments[s].first; k < t.segments[s].end; k += 4, to += kPanel) {
        DotLanes::U word{};
        for (int64_t i = 0; i < 4 && k + i < t.segments[s].end; ++i) {
          const Values x = load<Values>(b + (k + i) * kPanel) * factor;
          const Codes code = __builtin_convertvector(x, Codes);
          wrong |= __builtin_convertvector(code, Values) != x;
          word |= ((DotLanes::U)code & 255u) << (8 * i);
          sum += code;
        }
        store(to, word);
      }
      store(panels->start.data() + s * t.lanes + lane, sum * -128);
    }
    if (lane_bits<DotLanes>(wrong) != 0) return false;
  }
  return true;
}

struct DotSums {
  using Vector = DotLanes::I;
  const ScaledTile& t;
  const DotWords& words;
  const uint8_t* rows;
  const BytePanels& panels;

  template <int kRows, int kVectors>
  LPK_HD void add(int64_t segment, const Segment& s, int64_t row, int64_t lane,
                  Vector (&c)[kRows][kVectors]) const {
    const int64_t all = words.all(), first = words.first[segment];
    const uint8_t* a = rows + 4 * (row * all + first);
    const uint32_t* b = panels.words.data() + lane * all + first * kPanel;
    for (int v = 0; v < kVectors; ++v) {
      const auto start = load<Vector>(panels.start.data() + segment * t.lanes + lane + v * kPanel);
      for (int r = 0; r < kRows; ++r) c[r][v] = start;
    }
    for (int64_t w = 0; w < words_of(s); ++w, a += 4, b += kPanel) {
      __m512i column[kVectors];
      for (int v = 0; v < kVectors; ++v) column[v] = load<__m512i>(b + v * all * kPanel);
      for (int r = 0; r < kRows; ++r) {
        const __m512i x = _mm512_set1_epi32(load<int32_t>(a + 4 * r * all));
        for (int v = 0; v < kVectors; ++v)
          c[r][v] = (Vector)_mm512_dpbusd_epi32((__m512i)c[r][v], x, column[v]);
      }
    }
  }
  LPK_HD static ScaledFloats value(Vector c) {
    return (ScaledFloats) __builtin_convertvector(c, DotLanes::F);
  }
};

// Whether 2^shift times a row's scale takes its place, where the sum is 2^-shift times as large.
inline bool takes_shift(const ScaledTile& t, int shift) {
  if (shift == 0) return true;
  const OperandRange &rows = t.row_range, &lanes = t.lane_range;
  return shift <= 126 && t.scale_order != ScaleOrder::kRight && rows.plain && lanes.plain &&
         rows.lowest - shift >= -126 && rows.lowest + lanes.lowest - shift >= -126 &&
         rows.highest + lanes.highest <= 127;
}

// False, and nothing done, where the codes are no integers of eight bits.
inline bool run_dot_sums(const ScaledTile& tile) {
  BytePanels& panels = *tile.bytes;
  const int a = byte_shift(*tile.a_range);
  if (a < 0) return false;
  thread_local DotWords words;
  thread_local std::vector<uint8_t> rows;
  words.list(tile);
  if (panels.state == BytePanels::kUnknown) {
    const int shift = byte_shift(range_of_b(tile));
    panels.shift = shift;
    const bool fits = shift >= 0 && pack_dot_panels(tile, words, &panels);
    panels.state = fits ? BytePanels::kMade : BytePanels::kRefused;
  }
  const int both = a + panels.shift;
  if (panels.state == BytePanels::kRefused || !takes_shift(tile, both)) return false;
  if (!pack_dot_rows(tile, words, static_cast<float>(power_of_two(a)), &rows)) return false;
  ScaledTile t = tile;
  thread_local std::vector<float> row_scale;
  if (both != 0) {
    const float unit = static_cast<float>(power_of_two(-both));
    row_scale.resize(t.segment_count * t.rows);
    for (int64_t s = 0; s < t.segment_count; ++s) {
      for (int64_t r = 0; r < t.rows; ++r)
        row_scale[s * t.rows + r] = tile.row_scale[s * tile.row_scale_stride + r] * unit;
    }
    t.row_scale = row_scale.data();
    t.row_scale_stride = t.rows;
  }
  run_scaled_kernel(t, DotSums{t, words, rows.data(), panels});
  return true;
}

}  // namespace
}  // namespace lpk
