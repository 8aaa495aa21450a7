// Lanes are sixteen positions of a line, a panel for each channel of the result: fprop and dgrad of
// few channels, straight from a window. Nothing is packed but the weights.
//
// A kernel that needs no marks takes zeros for absent taps, so segments may lie on padding. A
// kernel that reads marks can be told of whole segments only: Product::marked then becomes true,
// and the columns on padding are made again in another way.
#include <algorithm>
#include <cstring>

#include "conv_operands.h"
#include "cpu/drivers/work_blocks.h"

namespace lpk {
namespace {

// Rows of a block from which on windows do not overlap too much.
constexpr int64_t kFewestRows = 48;

// What a window holds.
struct Held {
  uint64_t call = 0;
  int64_t channel = 0, channels = 0;  // of the source
  int64_t first = 0, count = 0;       // positions
  std::array<int64_t, kSpatial> grid{};

  bool operator==(const Held& o) const {
    return call == o.call && channel == o.channel && channels == o.channels && first == o.first &&
           count == o.count && grid == o.grid;
  }
};

struct SegmentScratch {
  Window window;
  Held held;
  OperandRange range;
  std::vector<LineRun> lines;
  std::vector<int32_t> row_at, tap_at, step_at;
  std::vector<uint8_t> pattern;
};
SegmentScratch& thread_scratch() {
  thread_local SegmentScratch scratch;
  return scratch;
}

}  // namespace

SegmentOperands::Extent SegmentOperands::extent(const PositionPass& pass) {
  const Gather& g = pass.reach;
  if (g.grid[2] < kPanel) return {0, 0};
  // Offsets of a reach descend.
  const auto span = [&](int i) { return g.taps[i].front().offset - g.taps[i].back().offset + 1; };
  // At least the extent of a window in each dimension.
  const int64_t pitch = g.grid[2] * g.step[2] + span(2);
  const int64_t most_rows = pass.lanes == 1 ? kSpreadRows : kUnitRows;
  const int64_t most_channels = std::min(pass.channels, kMaxSpreadDepth / pass.most_taps);
  for (int64_t channels = most_channels; channels > 0; --channels) {
    const int64_t room = kMaxSpread / (channels * pass.most_taps);
    for (int64_t rows = std::min(most_rows, room / kRowGroup * kRowGroup); rows >= kFewestRows;
         rows -= kRowGroup) {
      const int64_t lines = rows / segments(g) + 2;
      const int64_t pieces = lines / g.grid[1] + 2;
      const int64_t height = std::min(lines, g.grid[1]) * g.step[1] + span(1);
      const int64_t planes = pieces * static_cast<int64_t>(g.taps[0].size());
      if ((planes * height * pitch + kPanel) * channels <= Window::kMaxFloats)
        return {channels, rows};
    }
  }
  return {0, 0};
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

// Passes that go over the same positions, one after the other, find their window filled.
void SegmentOperands::fill_window(int64_t first, int64_t count, int64_t channel, int64_t channels,
                                  const Rounder& round) const {
  SegmentScratch& s = thread_scratch();
  const Gather& g = p_.reach;
  const Held held{p_.call, channel, channels, first, count, {g.grid[0], g.grid[1], g.grid[2]}};
  if (s.held == held) return;
  s.held = held;
  s.window.plan(g, p_.source, first, count, Window::Order::kPositions, channels);
  const float* from = p_.source.data + channel * p_.source.inner;
  for (int64_t c = 0; c < channels; ++c, from += p_.source.inner) s.window.fill_copy(c, from);
  round(s.window.data(), s.window.floats());
  s.range = range_of_zeros();
  kernels_.measure(s.window.data(), s.window.floats(), &s.range);
}

void SegmentOperands::spread_a(int64_t row, int64_t rows, int64_t k, int64_t depth,
                               const Rounder& round, SpreadBlock* a) const {
  SegmentScratch& s = thread_scratch();
  const Gather& g = p_.gather;
  const int64_t taps = g.tap_count(), width = g.grid[2], per_line = segments(g);
  const int64_t first = lines_of(row, rows, &s.lines);
  const int64_t positions = static_cast<int64_t>(s.lines.size()) * width;
  fill_window(first / per_line * width, positions, group_ * p_.source_group + k / taps,
              depth / taps, round);
  s.row_at.resize(rows);
  for (int64_t r = 0; r < rows; ++r)
    s.row_at[r] = s.window.base()[(row + r - first) / per_line * width + column(row + r)];
  s.tap_at.clear();
  const auto in_reach = [&](int axis, const AxisTap& tap) {
    const auto& all = p_.reach.taps[axis];
    return std::find_if(all.begin(), all.end(),
                        [&](const AxisTap& t) { return t.offset == tap.offset; }) -
           all.begin();
  };
  for (const AxisTap& d : g.taps[0]) {
    for (const AxisTap& h : g.taps[1]) {
      const int64_t line = s.window.line(in_reach(0, d), in_reach(1, h));
      for (const AxisTap& w : g.taps[2])
        s.tap_at.push_back(static_cast<int32_t>(line + s.window.column(in_reach(2, w))));
    }
  }
  s.step_at.clear();
  for (int64_t c = 0; c < depth / taps; ++c) {
    const int32_t channel = static_cast<int32_t>(c * s.window.size());
    for (const int32_t tap : s.tap_at) s.step_at.push_back(channel + tap);
  }
  *a = {s.window.data(), s.window.floats(), s.row_at.data(), s.step_at.data(), &s.range};
}

// A weight of each channel, in every lane.
void SegmentOperands::pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes,
                             const Rounder& round, float* b) const {
  const int64_t taps = p_.gather.tap_count();
  const float* from = p_.weight + group_ * p_.weight_group + lane / kPanel * p_.weight_lane +
                      k / taps * p_.weight_channel;
  float* to = b;
  for (int64_t l = 0; l < lanes; l += kPanel, from += p_.weight_lane) {
    const float* channel = from;
    for (int64_t c = 0; c < depth / taps; ++c, channel += p_.weight_channel) {
      for (const int64_t offset : p_.weight_offset) {
        std::fill_n(to, kPanel, channel[offset]);
        to += kPanel;
      }
    }
  }
  round(b, lanes * depth);
}

bool SegmentOperands::mark_rows(int64_t row, int64_t rows, int64_t k, int64_t depth,
                                uint8_t* absent) const {
  SegmentScratch& s = thread_scratch();
  const int64_t taps = p_.gather.tap_count(), per_line = segments(p_.gather);
  s.pattern.resize(taps);
  const int64_t first = lines_of(row, rows, &s.lines);
  bool any = false;
  for (int64_t r = 0; r < rows; ++r) {
    const LineRun& line = s.lines[(row + r - first) / per_line];
    // A column with all its taps inside the line stands for the others, if there is such a column.
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
