// Rows of A are the taps of the weight, k runs over the positions of an image: wgrad.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "conv_operands.h"

namespace lpk {
namespace {

struct TapScratch {
  Window window;
  std::vector<LineRun> runs;
  bool measured = false;
};
TapScratch& thread_scratch() {
  thread_local TapScratch scratch;
  return scratch;
}

}  // namespace

const float* TapOperands::channel(int64_t group, int64_t row) const {
  return p_.x.data + (group * p_.in_channels + row / p_.gather.kernel_volume()) * p_.x.inner;
}

void TapOperands::pack_a(int64_t row, int64_t rows, int64_t k, int64_t depth, const Rounder& round,
                         float* a) const {
  const Gather& g = p_.gather;
  TapScratch& scratch = thread_scratch();
  scratch.measured = false;
  Window& window = scratch.window;
  const bool windowed = window.plan(g, p_.x, k, depth, Window::Order::kPositions);
  scratch.measured = windowed && window.settled();
  if (!windowed) {
    line_runs(g.grid, k, depth, &scratch.runs);
    pack_slowly(scratch.runs, group_, row, rows, depth, a);
    return round(a, rows * depth);
  }
  const float* filled = nullptr;
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = channel(group_, row + r);
    if (from != filled) window.fill(kernels_, round, from);
    filled = from;
    window.copy(kernels_, g.tap_at((row + r) % g.kernel_volume()), a + r * depth);
  }
  if (!scratch.measured) round(a, rows * depth);
}

bool TapOperands::a_range(OperandRange* range) const {
  *range = thread_scratch().window.range();
  return thread_scratch().measured;
}

// Packs any shape element by element, for windows that are too large for the way above.
void TapOperands::pack_slowly(const std::vector<LineRun>& runs, int64_t group, int64_t row,
                              int64_t rows, int64_t depth, float* a) const {
  const Gather& g = p_.gather;
  for (int64_t r = 0; r < rows; ++r) {
    const auto tap = g.tap_at((row + r) % g.kernel_volume());
    for (const LineRun& run : runs) {
      for (int64_t i = 0; i < run.count; ++i) {
        const float* from = channel(group, row + r) + run.n * p_.x.outer;
        bool inside = true;
        for (int d = 0; d < kSpatial && inside; ++d) {
          const int64_t at = run.at[d] + (d == kSpatial - 1 ? i : 0);
          const int64_t offset = g.taps[d][tap[d]].offset;
          inside = g.inside(d, at, offset);
          from += (at * g.step[d] + offset) * p_.x.spatial[d];
        }
        a[r * depth + run.first + i] = inside ? *from : 0.0f;
      }
    }
  }
}

bool TapOperands::mark_rows(int64_t row, int64_t rows, int64_t k, int64_t depth,
                            uint8_t* absent) const {
  const Gather& g = p_.gather;
  std::vector<LineRun>& runs = thread_scratch().runs;
  line_runs(g.grid, k, depth, &runs);
  bool any = false;
  const auto mark = [&](int64_t r, int64_t from, int64_t to) {
    if (from >= to) return;
    if (!any) std::memset(absent, 0, rows * depth);
    any = true;
    std::memset(absent + r * depth + from, 1, to - from);
  };
  for (int64_t r = 0; r < rows; ++r) {
    const auto tap = g.tap_at((row + r) % g.kernel_volume());
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

void TapOperands::pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes,
                         const Rounder& round, float* b) const {
  TapScratch& scratch = thread_scratch();
  line_runs(p_.gather.grid, k, depth, &scratch.runs);
  const auto start = [&](const LineRun& run) {
    const float* from =
        p_.dy.data + run.n * p_.dy.outer + (group_ * p_.out_channels + lane) * p_.dy.inner;
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
    for (int64_t l = 0; l < lanes; l += kPanel) {
      pack_panels(kernels_, from + l * p_.dy.inner, step, p_.dy.inner, count,
                  std::min<int64_t>(kPanel, lanes - l), b + l * depth + first * kPanel);
    }
  }
  round(b, packed_floats(depth, lanes));
}

// Columns of the key number (c_in, kd, kh, kw) with c_in global across groups.
void TapOperands::row_ids(int64_t row, int64_t rows, uint64_t* ids) const {
  std::iota(ids, ids + rows, group_ * p_.in_channels * p_.gather.kernel_volume() + row);
}

void TapOperands::lane_ids(int64_t lane, int64_t lanes, uint64_t* ids) const {
  std::iota(ids, ids + lanes, group_ * p_.out_channels + lane);
}

void TapOperands::store(int64_t row, int64_t rows, int64_t lane, int64_t lanes, const float* values,
                        int64_t stride) const {
  const Gather& g = p_.gather;
  const auto place = [&](int64_t r) {
    const auto tap = g.tap_at((row + r) % g.kernel_volume());
    float* to = p_.dw.data + (group_ * p_.out_channels + lane) * p_.dw.outer +
                (row + r) / g.kernel_volume() * p_.dw.inner;
    for (int i = 0; i < kSpatial; ++i) to += tap[i] * p_.dw.spatial[i];
    return to;
  };
  for (int64_t r = 0; r < rows;) {
    float* to = place(r);
    const float* from = values + r * stride;
    int64_t count = 1;
    for (++r; r < rows && place(r) == to + count; ++r) ++count;
    kernels_.transpose(from, stride, count, lanes, to, p_.dw.outer);
  }
}

}  // namespace lpk
