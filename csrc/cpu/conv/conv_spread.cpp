// Lanes are channels of many small groups: every lane reads an image of its own.
#include <algorithm>

#include "conv_operands.h"

namespace lpk {
namespace {

struct SpreadScratch {
  Window& window = ConvScratch::of_thread().window;
  std::vector<LineRun>& runs = ConvScratch::of_thread().runs;
  std::vector<int32_t> row_at, step_at;
  AlignedFloats dense;
  std::vector<float> lane;

  // Copies channels channel(l, c) of every lane l into copy c of a window of some positions. False
  // if there is no such window; the positions are then in `runs`.
  template <class Channel>
  bool fill(const Kernels& kernels, const Gather& gather, const Image<const float>& image,
            Interval positions, int64_t channels, int64_t lanes, const Channel& channel) {
    constexpr auto kOrder = Window::Order::kPositions;
    if (!window.plan(gather, image, positions, kOrder, channels, kPanel)) {
      line_runs(gather.grid, positions, &runs);
      return false;
    }
    for (int64_t c = 0; c < channels; ++c) {
      const float* from[kPanel];
      for (int64_t l = 0; l < lanes; ++l) from[l] = channel(l, c);
      window.fill_panel(kernels, c, from, lanes);
    }
    return true;
  }

  // Where the positions of the window begin, and how far behind them its taps lie: `count` taps
  // from tap `first` of the first copy on.
  void list_positions(int64_t count, std::vector<int32_t>* to) const {
    to->resize(count);
    for (int64_t i = 0; i < count; ++i) (*to)[i] = window.base()[i] * static_cast<int32_t>(kPanel);
  }
  void list_taps(const Gather& gather, int64_t first, int64_t count,
                 std::vector<int32_t>* to) const {
    to->resize(count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t copy = (first + i) / gather.tap_count();
      const auto at = gather.tap_at((first + i) % gather.tap_count());
      const int64_t place = copy * window.size() + window.line(at[0], at[1]) + window.column(at[2]);
      (*to)[i] = static_cast<int32_t>(place * kPanel);
    }
  }
  // A of every lane one by one, where no window holds it: pack(lane, to) writes the rows x steps of
  // a lane.
  template <class Pack>
  void pack_dense(int64_t rows, int64_t steps, int64_t lanes, const Pack& pack) {
    dense.assign(rows * steps * kPanel, 0.0f);
    lane.resize(rows * steps);
    for (int64_t l = 0; l < lanes; ++l) {
      pack(l, lane.data());
      for (int64_t i = 0; i < rows * steps; ++i) dense[i * kPanel + l] = lane[i];
    }
    row_at.resize(rows);
    step_at.resize(steps);
    for (int64_t r = 0; r < rows; ++r) row_at[r] = static_cast<int32_t>(r * steps * kPanel);
    for (int64_t i = 0; i < steps; ++i) step_at[i] = static_cast<int32_t>(i * kPanel);
  }

  // Rounds A, and gives it to the tile.
  void finish(const Rounder& round, bool in_window, TileOperands* tile) {
    float* a = in_window ? window.data() : dense.data();
    tile->a = a;
    tile->a_count = in_window ? window.floats() : static_cast<int64_t>(dense.size());
    tile->row_at = row_at.data();
    tile->step_at = step_at.data();
    round(a, tile->a_count);
  }
};
SpreadScratch& thread_scratch() {
  thread_local SpreadScratch scratch;
  return scratch;
}

}  // namespace

void SpreadPositions::spread_a(Interval rows, Interval k, const Rounder& round,
                               TileOperands* tile) const {
  SpreadScratch& s = thread_scratch();
  const int64_t taps = p_.gather.tap_count();
  const auto group = [&](int64_t l) { return (first_ + l) / p_.lanes; };
  const auto channel = [&](int64_t l, int64_t c) {
    return p_.source.data + (group(l) * p_.channels + k.first / taps + c) * p_.source.inner;
  };
  const bool in_window =
      s.fill(kernels_, p_.gather, p_.source, rows, k.count / taps, lanes_, channel);
  if (in_window) {
    s.list_positions(rows.count, &s.row_at);
    s.list_taps(p_.gather, 0, k.count, &s.step_at);
  } else {
    s.pack_dense(rows.count, k.count, lanes_,
                 [&](int64_t l, float* to) { pack_slowly(s.runs, group(l), k, to); });
  }
  s.finish(round, in_window, tile);
}

void SpreadPositions::pack_b(Interval k, Interval, const Rounder& round, float* b) const {
  const int64_t taps = p_.gather.tap_count();
  std::fill_n(b, k.count * kPanel, 0.0f);
  for (int64_t l = 0; l < lanes_; ++l) {
    const int64_t lane = first_ + l;
    const float* from =
        p_.weight + lane / p_.lanes * p_.weight_group + lane % p_.lanes * p_.weight_lane;
    for (int64_t i = 0; i < k.count; ++i) {
      b[i * kPanel + l] =
          from[(k.first + i) / taps * p_.weight_channel + p_.weight_offset[(k.first + i) % taps]];
    }
  }
  round(b, k.count * kPanel);
}

void SpreadTaps::spread_a(Interval rows, Interval k, const Rounder& round,
                          TileOperands* tile) const {
  SpreadScratch& s = thread_scratch();
  const int64_t taps = p_.gather.kernel_volume();
  const int64_t channels = (rows.first + rows.count - 1) / taps - rows.first / taps + 1;
  const auto group = [&](int64_t l) { return (first_ + l) / p_.out_channels; };
  const auto of_lane = [&](int64_t l, int64_t c) {
    return channel(group(l), rows.first + c * taps);
  };
  const bool in_window = s.fill(kernels_, p_.gather, p_.x, k, channels, lanes_, of_lane);
  if (in_window) {
    s.list_taps(p_.gather, rows.first % taps, rows.count, &s.row_at);
    s.list_positions(k.count, &s.step_at);
  } else {
    s.pack_dense(rows.count, k.count, lanes_,
                 [&](int64_t l, float* to) { pack_slowly(s.runs, group(l), rows, k.count, to); });
  }
  s.finish(round, in_window, tile);
}

}  // namespace lpk
