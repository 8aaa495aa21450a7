// Rows of A are the taps of the weight, k runs over the positions of an image: wgrad.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "conv_operands.h"

namespace lpk {
const float* TapOperands::channel(int64_t group, int64_t row) const {
  return p_.x.data + (group * p_.in_channels + row / p_.gather.kernel_volume()) * p_.x.inner;
}

void TapOperands::pack_a(Interval rows, Interval k, const Rounder& round, float* a) const {
  const Gather& g = p_.gather;
  ConvScratch& scratch = ConvScratch::of_thread();
  Window& window = scratch.window;
  const bool windowed = window.plan(g, p_.x, k, Window::Order::kPositions);
  scratch.measured = windowed && window.settled();
  if (!windowed) {
    line_runs(g.grid, k, &scratch.runs);
    pack_slowly(scratch.runs, group_, rows, k.count, a);
    return round(a, rows.count * k.count);
  }
  const float* filled = nullptr;
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* from = channel(group_, rows.first + r);
    if (from != filled) window.fill(kernels_, round, from);
    filled = from;
    window.copy(kernels_, g.tap_at((rows.first + r) % g.kernel_volume()), a + r * k.count);
  }
  if (!scratch.measured) round(a, rows.count * k.count);
}

bool TapOperands::a_range(OperandRange* range) const {
  *range = ConvScratch::of_thread().window.range();
  return ConvScratch::of_thread().measured;
}

// Packs any shape element by element, for windows that are too large for the way above.
void TapOperands::pack_slowly(const std::vector<LineRun>& runs, int64_t group, Interval rows,
                              int64_t depth, float* a) const {
  const Gather& g = p_.gather;
  for (int64_t r = 0; r < rows.count; ++r) {
    const auto tap = g.tap_at((rows.first + r) % g.kernel_volume());
    for (const LineRun& run : runs) {
      for (int64_t i = 0; i < run.count; ++i)
        a[r * depth + run.first + i] =
            element_at(g, p_.x, channel(group, rows.first + r), run, i, tap);
    }
  }
}

bool TapOperands::mark_rows(Interval rows, Interval k, uint8_t* absent) const {
  const Gather& g = p_.gather;
  std::vector<LineRun>& runs = ConvScratch::of_thread().runs;
  line_runs(g.grid, k, &runs);
  bool any = false;
  const auto mark = [&](int64_t r, int64_t from, int64_t to) {
    if (from >= to) return;
    if (!any) std::memset(absent, 0, rows.count * k.count);
    any = true;
    std::memset(absent + r * k.count + from, 1, to - from);
  };
  for (int64_t r = 0; r < rows.count; ++r) {
    const auto tap = g.tap_at((rows.first + r) % g.kernel_volume());
    for (const LineRun& run : runs) {
      const int64_t end = run.first + run.count;
      if (!g.inside(0, run.at[0], g.taps[0][tap[0]].offset) ||
          !g.inside(1, run.at[1], g.taps[1][tap[1]].offset)) {
        mark(r, run.first, end);
        continue;
      }
      // Positions of the line from `low` to before `high` read from inside.
      const int64_t offset = g.taps[2][tap[2]].offset;
      const int64_t step = g.step[2];
      const int64_t low = offset >= 0 ? 0 : (-offset + step - 1) / step;
      const int64_t room = g.source[2] - 1 - offset;
      const int64_t high = room < 0 ? 0 : room / step + 1;
      const int64_t first = std::clamp<int64_t>(low - run.at[2], 0, run.count);
      const int64_t last = std::clamp<int64_t>(high - run.at[2], first, run.count);
      mark(r, run.first, run.first + first);
      mark(r, run.first + last, end);
    }
  }
  return any;
}

void TapOperands::pack_b(Interval k, Interval lanes, const Rounder& round, float* b) const {
  ConvScratch& scratch = ConvScratch::of_thread();
  line_runs(p_.gather.grid, k, &scratch.runs);
  const auto start = [&](const LineRun& run) {
    const float* from = p_.dy.data + run.n * p_.dy.outer + (first_ + lanes.first) * p_.dy.inner;
    for (int i = 0; i < kSpatial; ++i) from += run.at[i] * p_.dy.spatial[i];
    return from;
  };
  const std::vector<LineRun>& runs = scratch.runs;
  const int64_t step = p_.dy.spatial[2];
  for (size_t i = 0; i < runs.size();) {
    const float* from = start(runs[i]);
    const int64_t first = runs[i].first;
    // Lines that follow each other in memory are copied as one.
    int64_t count = runs[i].count;
    for (++i; i < runs.size() && start(runs[i]) == from + count * step; ++i) count += runs[i].count;
    for (int64_t l = 0; l < lanes.count; l += kPanel) {
      pack_panels(kernels_, from + l * p_.dy.inner, step, p_.dy.inner, count,
                  std::min<int64_t>(kPanel, lanes.count - l), b + l * k.count + first * kPanel);
    }
  }
  round(b, packed_floats(k.count, lanes.count));
}

// Columns of the key number (c_in, kd, kh, kw) with c_in global across groups.
void TapOperands::row_ids(Interval rows, uint64_t* ids) const {
  std::iota(ids, ids + rows.count,
            group_ * p_.in_channels * p_.gather.kernel_volume() + rows.first);
}

void TapOperands::lane_ids(Interval lanes, uint64_t* ids) const {
  std::iota(ids, ids + lanes.count, first_ + lanes.first);
}

void TapOperands::store(Interval rows, Interval lanes, const float* values, int64_t stride) const {
  const Gather& g = p_.gather;
  const auto place = [&](int64_t r) {
    const auto tap = g.tap_at((rows.first + r) % g.kernel_volume());
    float* to = p_.dw.data + (first_ + lanes.first) * p_.dw.outer +
                (rows.first + r) / g.kernel_volume() * p_.dw.inner;
    for (int i = 0; i < kSpatial; ++i) to += tap[i] * p_.dw.spatial[i];
    return to;
  };
  for (int64_t r = 0; r < rows.count;) {
    float* to = place(r);
    const float* from = values + r * stride;
    int64_t count = 1;
    for (++r; r < rows.count && place(r) == to + count; ++r) ++count;
    kernels_.transpose(from, stride, count, lanes.count, to, p_.dw.outer);
  }
}

}  // namespace lpk
