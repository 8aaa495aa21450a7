// Rows of A are positions of an image: fprop and dgrad.
#include <algorithm>
#include <cstring>

#include "conv_operands.h"

namespace lpk {
namespace {

// to[r * stride + i] = from[base[r] + i] for i < kCount.
template <int kCount>
void copy_taps(const float* from, const int32_t* base, int64_t rows, float* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * stride, from + base[r], kCount * sizeof(float));
}

// `count` consecutive taps of every row, and up to three more where there is room for them.
void copy_line(const float* from, const int32_t* base, int64_t rows, int64_t count, int64_t room,
               float* to, int64_t stride) {
  if (count == 1) return copy_taps<1>(from, base, rows, to, stride);
  if (count == 2) return copy_taps<2>(from, base, rows, to, stride);
  if (count <= 4 && room >= 4) return copy_taps<4>(from, base, rows, to, stride);
  if (count == 3) return copy_taps<3>(from, base, rows, to, stride);
  if (count > 4 && count <= 8 && room >= 8) return copy_taps<8>(from, base, rows, to, stride);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * stride, from + base[r], count * sizeof(float));
}

// Repeats the first `period` bytes until `count` are filled.
void repeat(uint8_t* bytes, int64_t period, int64_t count) {
  for (int64_t filled = period; filled < count; filled *= 2)
    std::memcpy(bytes + filled, bytes, std::min(filled, count - filled));
}

}  // namespace

void PositionPass::find_inside() {
  for (int i = 0; i < kSpatial; ++i) {
    inside_from[i] = 0;
    inside_to[i] = gather.grid[i];
    for (const AxisTap& tap : gather.taps[i]) {
      while (inside_from[i] < inside_to[i] && !gather.inside(i, inside_from[i], tap.offset))
        ++inside_from[i];
      while (inside_from[i] < inside_to[i] && !gather.inside(i, inside_to[i] - 1, tap.offset))
        --inside_to[i];
    }
  }
}

void PositionPass::list_taps(const int64_t* weight_spatial) {
  std::vector<int64_t> places;  // of the taps in the kernel
  for (const AxisTap& d : gather.taps[0]) {
    for (const AxisTap& h : gather.taps[1]) {
      for (const AxisTap& w : gather.taps[2]) {
        places.push_back((d.tap * gather.kernel[1] + h.tap) * gather.kernel[2] + w.tap);
        weight_offset.push_back(d.tap * weight_spatial[0] + h.tap * weight_spatial[1] +
                                w.tap * weight_spatial[2]);
      }
    }
  }
  consecutive = true;
  for (size_t i = 1; i < weight_offset.size(); ++i)
    consecutive &= weight_offset[i] == weight_offset[i - 1] + 1;
  const int64_t volume = gather.kernel_volume();
  if (gather.tap_count() == volume) return;
  for (int64_t c = 0; c < channels; ++c) {
    for (const int64_t place : places) position.push_back(c * volume + place);
  }
  position.push_back(channels * volume);
}

void PositionOperands::pack_a(Interval rows, Interval k, const Rounder& round, float* a) const {
  const int64_t taps = p_.gather.tap_count();
  ConvScratch& scratch = ConvScratch::of_thread();
  Window& window = scratch.window;
  scratch.measured = false;
  if (k.first % taps == 0 && k.count % taps == 0 &&
      window.plan(p_.gather, p_.source, rows, Window::Order::kTaps)) {
    pack_channels(window, rows.count, k.first / taps, k.count, round, a);
    scratch.measured = window.settled();
  } else {
    line_runs(p_.gather.grid, rows, &scratch.runs);
    pack_slowly(scratch.runs, group_, k, a);
  }
  if (!scratch.measured) round(a, rows.count * k.count);
}

bool PositionOperands::a_range(OperandRange* range) const {
  *range = ConvScratch::of_thread().window.range();
  return ConvScratch::of_thread().measured;
}

// Whole channels through the window.
void PositionOperands::pack_channels(Window& window, int64_t rows, int64_t channel, int64_t depth,
                                     const Rounder& round, float* a) const {
  const int64_t taps = p_.gather.tap_count();
  const int64_t width = static_cast<int64_t>(p_.gather.taps[2].size());
  const float* from = p_.source.data + (group_ * p_.channels + channel) * p_.source.inner;
  if (width == 1 || window.column(1) != window.column(0) + 1)
    return pack_columns(window, rows, from, depth, round, a);
  for (int64_t c = 0; c < depth; c += taps, from += p_.source.inner) {
    window.fill(kernels_, round, from);
    for (int64_t i = 0; i < taps; i += width) {
      const auto at = p_.gather.tap_at(i);
      const float* line = window.data() + window.line(at[0], at[1]);
      copy_line(line + window.column(0), window.base(), rows, width, depth - c - i, a + c + i,
                depth);
    }
  }
}

// The same tap by tap: sixteen taps of all rows at a time, then turned.
void PositionOperands::pack_columns(Window& window, int64_t rows, const float* from, int64_t depth,
                                    const Rounder& round, float* a) const {
  constexpr int64_t kColumns = 16;
  thread_local std::vector<float> columns;
  columns.resize(kColumns * rows + kPanel);
  const int64_t taps = p_.gather.tap_count();
  for (int64_t k = 0; k < depth; k += kColumns) {
    const int64_t count = std::min(kColumns, depth - k);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t tap = (k + i) % taps;
      if (tap == 0) window.fill(kernels_, round, from + (k + i) / taps * p_.source.inner);
      window.copy(kernels_, p_.gather.tap_at(tap), columns.data() + i * rows);
    }
    kernels_.transpose(columns.data(), rows, count, rows, a + k, depth);
  }
}

// Packs any shape element by element, for kernels and windows that are too large for the way above.
void PositionOperands::pack_slowly(const std::vector<LineRun>& runs, int64_t group, Interval k,
                                   float* a) const {
  const int64_t taps = p_.gather.tap_count();
  for (int64_t i = 0; i < k.count; ++i) {
    const auto tap = p_.gather.tap_at((k.first + i) % taps);
    const float* channel =
        p_.source.data + (group * p_.channels + (k.first + i) / taps) * p_.source.inner;
    for (const LineRun& run : runs) {
      for (int64_t r = 0; r < run.count; ++r)
        a[(run.first + r) * k.count + i] = element_at(p_.gather, p_.source, channel, run, r, tap);
    }
  }
}

// 1 for every tap that falls outside at this position.
void PositionPass::tap_pattern(const int64_t* at, uint8_t* pattern) const {
  const Gather& g = gather;
  for (const AxisTap& d : g.taps[0]) {
    for (const AxisTap& h : g.taps[1]) {
      const bool outside = !g.inside(0, at[0], d.offset) || !g.inside(1, at[1], h.offset);
      for (const AxisTap& w : g.taps[2]) *pattern++ = outside || !g.inside(2, at[2], w.offset);
    }
  }
}

bool PositionOperands::mark_rows(Interval rows, Interval k, uint8_t* absent) const {
  thread_local std::vector<uint8_t> pattern;
  const int64_t taps = p_.gather.tap_count();
  pattern.resize(taps);
  bool any = false;
  std::vector<LineRun>& runs = ConvScratch::of_thread().runs;
  line_runs(p_.gather.grid, rows, &runs);
  p_.for_each_border(runs, [&](int64_t r, const int64_t* at) {
    if (!any) std::memset(absent, 0, rows.count * k.count);
    any = true;
    p_.tap_pattern(at, pattern.data());
    uint8_t* marks = absent + r * k.count;
    const int64_t period = std::min(taps, k.count);
    for (int64_t i = 0; i < period; ++i) marks[i] = pattern[(k.first + i) % taps];
    repeat(marks, period, k.count);
  });
  return any;
}

void PositionOperands::pack_b(Interval k, Interval lanes, const Rounder& round, float* b) const {
  const float* from = p_.weight + group_ * p_.weight_group + lanes.first * p_.weight_lane;
  for (int64_t l = 0; l < lanes.count; l += kPanel)
    pack_panel(k, from + l * p_.weight_lane, std::min<int64_t>(kPanel, lanes.count - l),
               b + l * k.count);
  round(b, packed_floats(k.count, lanes.count));
}

// One panel; `from` is the weight of channel 0, tap offset 0 and the first lane.
void PositionOperands::pack_panel(Interval k, const float* from, int64_t width, float* b) const {
  const int64_t taps = p_.gather.tap_count();
  const auto& offsets = p_.weight_offset;
  if (p_.weight_lane != 1 && p_.consecutive && p_.weight_channel == taps)
    return pack_panels(kernels_, from + offsets[0] + k.first, 1, p_.weight_lane, k.count, width, b);
  const bool whole = k.first % taps == 0 && k.count % taps == 0;
  const float* line = from + k.first / taps * p_.weight_channel;
  if (whole && p_.weight_lane != 1 && p_.consecutive && taps > 1) {
    for (int64_t i = 0; i < k.count; i += taps, line += p_.weight_channel)
      pack_panels(kernels_, line + offsets[0], 1, p_.weight_lane, taps, width, b + i * kPanel);
    return;
  }
  if (width < kPanel) std::fill_n(b, k.count * kPanel, 0.0f);
  if (whole && p_.weight_lane != 1 && p_.weight_channel == 1) {
    for (int64_t t = 0; t < taps; ++t)
      kernels_.transpose(line + offsets[t], p_.weight_lane, width, k.count / taps, b + t * kPanel,
                         taps * kPanel);
    return;
  }
  for (int64_t i = 0, tap = k.first % taps; i < k.count; ++i, b += kPanel) {
    const float* first = line + offsets[tap];
    if (p_.weight_lane == 1 && width == kPanel) {
      std::memcpy(b, first, kPanel * sizeof(float));
    } else {
      for (int64_t l = 0; l < width; ++l) b[l] = first[l * p_.weight_lane];
    }
    if (++tap < taps) continue;
    tap = 0;
    line += p_.weight_channel;
  }
}

void PositionOperands::row_ids(Interval rows, uint64_t* ids) const {
  std::vector<LineRun>& runs = ConvScratch::of_thread().runs;
  line_runs(p_.gather.grid, rows, &runs);
  for (const LineRun& run : runs) {
    int64_t linear = run.n;
    for (int i = 0; i < kSpatial; ++i)
      linear = linear * p_.result_size[i] + run.at[i] * p_.result_step[i] + p_.result_phase[i];
    for (int64_t r = 0; r < run.count; ++r) ids[run.first + r] = linear + r * p_.result_step[2];
  }
}

void PositionOperands::lane_ids(Interval lanes, uint64_t* ids) const {
  for (int64_t l = 0; l < lanes.count; ++l) ids[l] = first_ + lanes.first + l;
}

// Where the first position of a run goes, lane 0.
float* PositionOperands::place(const LineRun& run) const {
  float* to = p_.result.data + run.n * p_.result.outer + first_ * p_.result.inner;
  for (int i = 0; i < kSpatial; ++i)
    to += (run.at[i] * p_.result_step[i] + p_.result_phase[i]) * p_.result.spatial[i];
  return to;
}

// Positions of run *i and of the runs that follow it in memory; *i moves past all these runs.
int64_t PositionOperands::joined(const std::vector<LineRun>& runs, size_t* i, int64_t step) const {
  const float* to = place(runs[*i]);
  int64_t count = runs[*i].count;
  for (++*i; *i < runs.size() && place(runs[*i]) == to + count * step; ++*i)
    count += runs[*i].count;
  return count;
}

// Positions `step` apart, channels too: through a transposed copy of a few lanes.
void PositionOperands::store_apart(const float* from, int64_t stride, int64_t rows, int64_t lanes,
                                   int64_t step, float* to) const {
  constexpr int64_t kRows = 96;
  float copy[kPanel * kRows];
  for (int64_t l0 = 0; l0 < lanes; l0 += kPanel) {
    const int64_t width = std::min<int64_t>(kPanel, lanes - l0);
    for (int64_t r0 = 0; r0 < rows; r0 += kRows) {
      const int64_t count = std::min(kRows, rows - r0);
      kernels_.transpose(from + r0 * stride + l0, stride, count, width, copy, kRows);
      for (int64_t l = 0; l < width; ++l) {
        float* line = to + (l0 + l) * p_.result.inner + r0 * step;
        for (int64_t r = 0; r < count; ++r) line[r * step] = copy[l * kRows + r];
      }
    }
  }
}

void PositionOperands::store(Interval rows, Interval lanes, const float* values,
                             int64_t stride) const {
  std::vector<LineRun>& runs = ConvScratch::of_thread().runs;
  line_runs(p_.gather.grid, rows, &runs);
  const int64_t step = p_.result_step[2] * p_.result.spatial[2];
  for (size_t i = 0; i < runs.size();) {
    float* to = place(runs[i]) + lanes.first * p_.result.inner;
    const float* from = values + runs[i].first * stride;
    const int64_t count = joined(runs, &i, step);
    if (step == 1) {
      kernels_.transpose(from, stride, count, lanes.count, to, p_.result.inner);
    } else if (p_.result.inner == 1) {
      for (int64_t r = 0; r < count; ++r)
        std::memcpy(to + r * step, from + r * stride, lanes.count * sizeof(float));
    } else {
      store_apart(from, stride, count, lanes.count, step, to);
    }
  }
}

}  // namespace lpk
