// Lanes are channels of many small groups: every lane reads an image of its own.
#include <algorithm>

#include "conv_operands.h"

namespace lpk {
namespace {

struct SpreadScratch {
  Window window;
  std::vector<LineRun> runs;
  std::vector<int32_t> row_at, step_at;
  AlignedFloats dense;
  std::vector<float> lane;

  SpreadBlock block(int64_t rows, int64_t steps) {
    row_at.resize(rows);
    step_at.resize(steps);
    return {window.data(), window.floats(), row_at.data(), step_at.data()};
  }
  // Fills rows x steps x kPanel floats where there is no window: pack(lane, to) writes the rows x
  // steps of one lane.
  template <class Pack>
  SpreadBlock dense_block(int64_t rows, int64_t steps, int64_t lanes, const Pack& pack) {
    SpreadBlock a = block(rows, steps);
    dense.assign(rows * steps * kPanel, 0.0f);
    lane.resize(rows * steps);
    for (int64_t l = 0; l < lanes; ++l) {
      pack(l, lane.data());
      for (int64_t i = 0; i < rows * steps; ++i) dense[i * kPanel + l] = lane[i];
    }
    for (int64_t r = 0; r < rows; ++r) row_at[r] = static_cast<int32_t>(r * steps * kPanel);
    for (int64_t i = 0; i < steps; ++i) step_at[i] = static_cast<int32_t>(i * kPanel);
    a.a = dense.data();
    a.count = static_cast<int64_t>(dense.size());
    return a;
  }
};
SpreadScratch& thread_scratch() {
  thread_local SpreadScratch scratch;
  return scratch;
}

// The index of the first float that tap `tap` reads in copy `copy` of the window.
int32_t place_of(const Window& window, const Gather& gather, int64_t copy, int64_t tap) {
  const auto at = gather.tap_at(tap);
  return static_cast<int32_t>(
      (copy * window.size() + window.line(at[0], at[1]) + window.column(at[2])) * kPanel);
}

}  // namespace

void SpreadPositions::spread_a(int64_t row, int64_t rows, int64_t k, int64_t depth,
                               const Rounder& round, SpreadBlock* a) const {
  SpreadScratch& s = thread_scratch();
  const int64_t taps = p_.gather.tap_count();
  const int64_t channels = depth / taps;
  if (!s.window.plan(p_.gather, p_.source, row, rows, Window::Order::kPositions, channels,
                     kPanel)) {
    line_runs(p_.gather.grid, row, rows, &s.runs);
    *a = s.dense_block(rows, depth, lanes_, [&](int64_t l, float* to) {
      pack_slowly(s.runs, (first_ + l) / p_.lanes, k, depth, to);
    });
    return round(a->a, a->count);
  }
  *a = s.block(rows, depth);
  for (int64_t c = 0; c < channels; ++c) {
    const float* from[kPanel];
    for (int64_t l = 0; l < lanes_; ++l) {
      const int64_t channel = (first_ + l) / p_.lanes * p_.source_group + k / taps + c;
      from[l] = p_.source.data + channel * p_.source.inner;
    }
    s.window.fill_panel(kernels_, c, from, lanes_);
  }
  for (int64_t r = 0; r < rows; ++r)
    s.row_at[r] = s.window.base()[r] * static_cast<int32_t>(kPanel);
  for (int64_t i = 0; i < depth; ++i)
    s.step_at[i] = place_of(s.window, p_.gather, i / taps, i % taps);
  round(a->a, a->count);
}

void SpreadPositions::pack_b(int64_t k, int64_t depth, int64_t, int64_t, const Rounder& round,
                             float* b) const {
  const int64_t taps = p_.gather.tap_count();
  std::fill_n(b, depth * kPanel, 0.0f);
  for (int64_t l = 0; l < lanes_; ++l) {
    const int64_t lane = first_ + l;
    const float* from =
        p_.weight + lane / p_.lanes * p_.weight_group + lane % p_.lanes * p_.weight_lane;
    for (int64_t i = 0; i < depth; ++i) {
      b[i * kPanel + l] =
          from[(k + i) / taps * p_.weight_channel + p_.weight_offset[(k + i) % taps]];
    }
  }
  round(b, depth * kPanel);
}

void SpreadPositions::lane_ids(int64_t, int64_t lanes, uint64_t* ids) const {
  PositionOperands::lane_ids(first_, lanes, ids);
}

// Consecutive lanes are equally far apart in the result, also from group to group.
void SpreadPositions::store(int64_t row, int64_t rows, int64_t, int64_t lanes, const float* values,
                            int64_t stride) const {
  PositionOperands::store(row, rows, first_, lanes, values, stride);
}

void SpreadTaps::spread_a(int64_t row, int64_t rows, int64_t k, int64_t depth, const Rounder& round,
                          SpreadBlock* a) const {
  SpreadScratch& s = thread_scratch();
  const int64_t taps = p_.gather.kernel_volume();
  const int64_t channels = (row + rows - 1) / taps - row / taps + 1;
  const auto group = [&](int64_t l) { return (first_ + l) / p_.out_channels; };
  if (!s.window.plan(p_.gather, p_.x, k, depth, Window::Order::kPositions, channels, kPanel)) {
    line_runs(p_.gather.grid, k, depth, &s.runs);
    *a = s.dense_block(rows, depth, lanes_, [&](int64_t l, float* to) {
      pack_slowly(s.runs, group(l), row, rows, depth, to);
    });
    return round(a->a, a->count);
  }
  *a = s.block(rows, depth);
  for (int64_t c = 0; c < channels; ++c) {
    const float* from[kPanel];
    for (int64_t l = 0; l < lanes_; ++l) from[l] = channel(group(l), row + c * taps);
    s.window.fill_panel(kernels_, c, from, lanes_);
  }
  for (int64_t r = 0; r < rows; ++r) {
    s.row_at[r] = place_of(s.window, p_.gather, (row + r) / taps - row / taps, (row + r) % taps);
  }
  for (int64_t i = 0; i < depth; ++i)
    s.step_at[i] = s.window.base()[i] * static_cast<int32_t>(kPanel);
  round(a->a, a->count);
}

void SpreadTaps::pack_b(int64_t k, int64_t depth, int64_t, int64_t lanes, const Rounder& round,
                        float* b) const {
  TapOperands::pack_b(k, depth, first_, lanes, round, b);
}

void SpreadTaps::lane_ids(int64_t, int64_t lanes, uint64_t* ids) const {
  TapOperands::lane_ids(first_, lanes, ids);
}

void SpreadTaps::store(int64_t row, int64_t rows, int64_t, int64_t lanes, const float* values,
                       int64_t stride) const {
  TapOperands::store(row, rows, first_, lanes, values, stride);
}

}  // namespace lpk
