// Lanes are sixteen positions of a line, a panel for each channel of the result: fprop and dgrad of
// few channels, straight from a window. Nothing is packed but the weights.
//
// A kernel that needs no marks takes zeros for absent taps, so segments may lie on padding. One
// that asks for marks can be told of whole segments only: the columns on padding are then left to
// be done again in another way, which `asked` tells.
#include <algorithm>
#include <cstring>

#include "conv_operands.h"

namespace lpk {
namespace {

struct SegmentScratch {
  Window window;
  std::vector<LineRun> lines;
  std::vector<int32_t> row_at, step_at;
  std::vector<uint8_t> pattern;
};
SegmentScratch& thread_scratch() {
  thread_local SegmentScratch scratch;
  return scratch;
}

}  // namespace

int64_t SegmentOperands::depth(const PositionPass& pass) {
  const Gather& g = pass.gather;
  const int64_t taps = g.tap_count();
  if (g.grid[2] < kPanel || taps > kMaxDepth / 2) return 0;
  const auto span = [&](int i) {
    return std::abs(g.taps[i].back().offset - g.taps[i].front().offset) + 1;
  };
  // At least what a window takes of each dimension, with as many rows as a block may have.
  const int64_t most = pass.lanes == 1 ? kSpreadRows : kUnitRows;
  const int64_t pitch = g.grid[2] * g.step[2] + span(2);
  for (int64_t channels = std::min(pass.channels, kMaxDepth / 2 / taps); channels > 0; --channels) {
    const int64_t rows = std::min(most, kMaxRows * kMaxDepth / (channels * taps));
    const int64_t lines = rows / segments(g) + 2;
    const int64_t pieces = lines / g.grid[1] + 2;
    const int64_t height = std::min(lines, g.grid[1]) * g.step[1] + span(1);
    const int64_t planes = pieces * static_cast<int64_t>(g.taps[0].size());
    if ((planes * height * pitch + kPanel) * channels <= Window::kMaxFloats / 2)
      return channels * taps;
  }
  return 0;
}

// The lines in which the rows lie, whole; their first segment.
int64_t SegmentOperands::lines_of(int64_t row, int64_t rows, std::vector<LineRun>* lines) const {
  const int64_t per_line = segments(p_.gather), width = p_.gather.grid[2];
  const int64_t first = row / per_line, last = (row + rows - 1) / per_line;
  line_runs(p_.gather.grid, first * width, (last - first + 1) * width, lines);
  return first * per_line;
}

// The last segment of a line ends where the line does.
int64_t SegmentOperands::column(int64_t row) const {
  return std::min(row % segments(p_.gather) * kPanel, p_.gather.grid[2] - kPanel);
}

void SegmentOperands::spread_a(int64_t row, int64_t rows, int64_t k, int64_t depth,
                               SpreadBlock* a) const {
  SegmentScratch& s = thread_scratch();
  const Gather& g = p_.gather;
  const int64_t taps = g.tap_count(), width = g.grid[2], per_line = segments(g);
  const int64_t first = lines_of(row, rows, &s.lines);
  const int64_t positions = static_cast<int64_t>(s.lines.size()) * width;
  s.window.plan(g, p_.source, first / per_line * width, positions, Window::Order::kPositions,
                depth / taps);
  const float* channel = p_.source.data + (group_ * p_.source_group + k / taps) * p_.source.inner;
  for (int64_t c = 0; c < depth / taps; ++c, channel += p_.source.inner)
    s.window.fill_copy(c, channel);
  s.row_at.resize(rows);
  for (int64_t r = 0; r < rows; ++r)
    s.row_at[r] = s.window.base()[(row + r - first) / per_line * width + column(row + r)];
  s.step_at.resize(depth);
  for (int64_t i = 0; i < depth; ++i) {
    const auto at = g.tap_at(i % taps);
    s.step_at[i] = static_cast<int32_t>(i / taps * s.window.size() + s.window.line(at[0], at[1]) +
                                        s.window.column(at[2]));
  }
  *a = {s.window.data(), s.window.floats(), s.row_at.data(), s.step_at.data()};
}

// A weight of each channel, in every lane.
void SegmentOperands::pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes,
                             const Rounder& round, float* b) const {
  const int64_t taps = p_.gather.tap_count();
  const float* from = p_.weight + group_ * p_.weight_group + lane / kPanel * p_.weight_lane;
  float* to = b;
  for (int64_t l = 0; l < lanes; l += kPanel, from += p_.weight_lane) {
    for (int64_t i = k; i < k + depth; ++i, to += kPanel)
      std::fill_n(to, kPanel, from[i / taps * p_.weight_channel + p_.weight_offset[i % taps]]);
  }
  round(b, lanes * depth);
}

bool SegmentOperands::mark_rows(int64_t row, int64_t rows, int64_t k, int64_t depth,
                                uint8_t* absent) const {
  SegmentScratch& s = thread_scratch();
  *asked_ = true;
  const int64_t taps = p_.gather.tap_count(), per_line = segments(p_.gather);
  s.pattern.resize(taps);
  const int64_t first = lines_of(row, rows, &s.lines);
  bool any = false;
  for (int64_t r = 0; r < rows; ++r) {
    const LineRun& line = s.lines[(row + r - first) / per_line];
    // Of a column whose taps are inside the line, if there is one.
    const int64_t at[kSpatial] = {line.at[0], line.at[1], p_.inside_from[2]};
    p_.tap_pattern(at, s.pattern.data());
    for (int64_t i = 0; i < depth; ++i) absent[r * depth + i] = s.pattern[(k + i) % taps];
    any |= std::find(s.pattern.begin(), s.pattern.end(), 1) != s.pattern.end();
  }
  return any;
}

void SegmentOperands::lane_ids(int64_t lane, int64_t lanes, uint64_t* ids) const {
  for (int64_t l = 0; l < lanes; ++l) ids[l] = group_ * p_.lanes + (lane + l) / kPanel;
}

void SegmentOperands::store(int64_t row, int64_t rows, int64_t lane, int64_t lanes,
                            const float* values, int64_t stride) const {
  SegmentScratch& s = thread_scratch();
  const int64_t step = p_.result_step[2] * p_.result.spatial[2], per_line = segments(p_.gather);
  const int64_t first = lines_of(row, rows, &s.lines);
  for (int64_t l = 0; l < lanes; l += kPanel) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = values + r * stride + l;
      float* to = place(s.lines[(row + r - first) / per_line]) +
                  (lane + l) / kPanel * p_.result.inner + column(row + r) * step;
      if (step == 1) {
        std::memcpy(to, from, kPanel * sizeof(float));
      } else {
        for (int64_t i = 0; i < kPanel; ++i) to[i * step] = from[i];
      }
    }
  }
}

}  // namespace lpk
