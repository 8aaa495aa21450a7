// Kernels of one tap without padding: plain products on the positions of an image that are read.
// Rows of A are channels, lanes are positions: nothing is turned, neither packed nor stored.
#include <algorithm>

#include "conv_operands.h"

namespace lpk {
namespace {

// Positions at equal steps in memory.
struct Stretch {
  int64_t from, first, count;
};
struct PointScratch {
  std::vector<LineRun> runs;
  std::vector<Stretch> stretches;
  std::vector<PanelCopy> copies;
  AlignedFloats line;
};
PointScratch& thread_scratch() {
  thread_local PointScratch scratch;
  return scratch;
}

// Stores the values two steps apart, with zeros between them.
void spread_by_two(const float* from, int64_t count, int64_t end, float* to) {
  const int64_t pairs = end / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    to[2 * i] = from[i];
    to[2 * i + 1] = 0.0f;
  }
  if (pairs < count) to[2 * pairs] = from[pairs];
}

}  // namespace

void PointOperands::pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes,
                           const Rounder& round, float* b) const {
  PointScratch& s = thread_scratch();
  const Image<const float>& x = p_.source;
  const int64_t step = p_.gather.step[2] * x.spatial[2];
  line_runs(p_.gather.grid, lane, lanes, &s.runs);
  s.stretches.clear();
  for (const LineRun& run : s.runs) {
    int64_t from = run.n * x.outer;
    for (int i = 0; i < kSpatial; ++i) from += run.at[i] * p_.gather.step[i] * x.spatial[i];
    if (!s.stretches.empty()) {
      Stretch& last = s.stretches.back();
      if (from == last.from + last.count * step) {
        last.count += run.count;
        continue;
      }
    }
    s.stretches.push_back({from, run.first, run.count});
  }
  const int64_t panels = (lanes + kPanel - 1) / kPanel;
  s.copies.clear();
  for (int64_t p = 0; p < panels; ++p)
    s.copies.push_back(
        {static_cast<int32_t>(p * kPanel), static_cast<int32_t>(p * depth * kPanel)});
  s.line.assign(panels * kPanel, 0.0f);
  const bool in_place = step == 1 && s.stretches.size() == 1 && lanes % kPanel == 0;
  const float* channel = x.data + (group_ * p_.source_group + k) * x.inner;
  for (int64_t i = 0; i < depth; ++i, channel += x.inner) {
    const float* from = in_place ? channel + s.stretches[0].from : s.line.data();
    if (!in_place) {
      for (const Stretch& part : s.stretches)
        copy_run(channel + part.from, step, part.count, s.line.data() + part.first);
    }
    kernels_.copy_panels(s.copies.data(), panels, from, b + i * kPanel);
  }
  round(b, packed_floats(depth, lanes));
}

// Stores the cell of every position. It begins at the position itself; the rest of the cell is
// zeros.
void PointOperands::store(int64_t row, int64_t rows, int64_t lane, int64_t lanes,
                          const float* values, int64_t stride) const {
  if (!p_.fills_cells) return ChannelOperands::store(row, rows, lane, lanes, values, stride);
  std::vector<LineRun>& runs = thread_scratch().runs;
  line_runs(p_.gather.grid, lane, lanes, &runs);
  for (int64_t r = 0; r < rows; ++r, values += stride) {
    for (const LineRun& run : runs) {
      int64_t size[kSpatial];
      for (int i = 0; i < kSpatial; ++i) {
        const int64_t positions = i == kSpatial - 1 ? run.count : 1;
        size[i] = std::min(positions * p_.result_step[i],
                           p_.result_size[i] - run.at[i] * p_.result_step[i]);
      }
      float* to = place(run) + (row + r) * p_.result.inner;
      for (int64_t d = 0; d < size[0]; ++d) {
        for (int64_t h = 0; h < size[1]; ++h)
          store_line(d == 0 && h == 0 ? values + run.first : nullptr, run.count, size[2],
                     to + d * p_.result.spatial[0] + h * p_.result.spatial[1]);
      }
    }
  }
}

// A line of cells; null: no position lies in it.
void PointOperands::store_line(const float* values, int64_t count, int64_t end, float* to) const {
  const int64_t step = p_.result_step[2];
  if (values != nullptr && step == 2) return spread_by_two(values, count, end, to);
  std::fill_n(to, end, 0.0f);
  for (int64_t i = 0; values != nullptr && i < count; ++i) to[i * step] = values[i];
}

}  // namespace lpk
