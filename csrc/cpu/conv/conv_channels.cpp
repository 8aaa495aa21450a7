// Rows of A are channels, lanes are positions of an image: fprop and dgrad of few channels.
#include <algorithm>
#include <cstring>

#include "conv_operands.h"

namespace lpk {
namespace {

struct ChannelScratch {
  Window window;
  std::vector<LineRun> runs;
  std::vector<float> rows;
  std::vector<uint8_t> pattern;
  std::vector<PanelCopy> copies;
  std::vector<const float*> tap_lines;
  bool measured;
};
ChannelScratch& thread_scratch() {
  thread_local ChannelScratch scratch;
  return scratch;
}

// Rows whose weights share lines of memory.
constexpr int64_t kWeightRows = 8;

// a[r][k] of some taps of every channel, which begin at `from`.
void pack_weights(const PositionPass& p, const float* from, int64_t rows, int64_t depth, float* a) {
  const int64_t taps = static_cast<int64_t>(p.weight_offset.size());
  for (int64_t k = 0; k < depth; k += taps, from += p.weight_channel) {
    for (int64_t t = 0; t < taps; ++t) {
      const float* tap = from + p.weight_offset[t];
      for (int64_t r = 0; r < rows; ++r) a[r * depth + k + t] = tap[r * p.weight_lane];
    }
  }
}

}  // namespace

void ChannelOperands::pack_a(int64_t row, int64_t rows, int64_t k, int64_t depth,
                             const Rounder& round, float* a) const {
  const int64_t taps = p_.gather.tap_count();
  const auto& offsets = p_.weight_offset;
  const float* from = p_.weight + group_ * p_.weight_group + row * p_.weight_lane;
  float* to = a;
  if (taps == 1 && p_.weight_lane == 1) {
    kernels_.transpose(from + offsets[0] + k * p_.weight_channel, p_.weight_channel, depth, rows, a,
                       depth);
    return round(a, rows * depth);
  }
  if (!p_.consecutive && k % taps == 0 && depth % taps == 0) {
    const float* first = from + k / taps * p_.weight_channel;
    for (int64_t r = 0; r < rows; r += kWeightRows)
      pack_weights(p_, first + r * p_.weight_lane, std::min(kWeightRows, rows - r), depth,
                   a + r * depth);
    return round(a, rows * depth);
  }
  for (int64_t r = 0; r < rows; ++r, from += p_.weight_lane) {
    if (p_.consecutive && p_.weight_channel == taps) {
      std::memcpy(to, from + offsets[0] + k, depth * sizeof(float));
      to += depth;
      continue;
    }
    int64_t tap = k % taps;
    const float* channel = from + k / taps * p_.weight_channel;
    if (p_.consecutive && tap == 0 && depth % taps == 0) {
      for (int64_t i = 0; i < depth; i += taps, channel += p_.weight_channel)
        to = std::copy_n(channel + offsets[0], taps, to);
      continue;
    }
    for (int64_t i = 0; i < depth; ++i) {
      *to++ = channel[offsets[tap]];
      if (++tap < taps) continue;
      tap = 0;
      channel += p_.weight_channel;
    }
  }
  round(a, rows * depth);
}

// Packs whole channels through the window. A copy of sixteen may run past its part of a panel, into
// the part that is written after it; the last tap may not.
void ChannelOperands::pack_window(int64_t k, int64_t depth, const Rounder& round, float* b) const {
  ChannelScratch& scratch = thread_scratch();
  Window& window = scratch.window;
  const int64_t taps = p_.gather.tap_count();
  const int64_t step = window.position_step();
  scratch.copies.clear();
  const auto each_part = [&](const auto& visit) {
    for (const LineRun& run : window.runs()) {
      int64_t count;
      for (int64_t i = 0; i < run.count; i += count) {
        const int64_t lane = (run.first + i) % kPanel;
        count = std::min(kPanel - lane, run.count - i);
        visit(window.base()[run.first + i], (run.first + i) / kPanel * depth * kPanel + lane,
              count);
      }
    }
  };
  each_part([&](int32_t from, int64_t to, int64_t) {
    scratch.copies.push_back({from, static_cast<int32_t>(to)});
  });
  scratch.tap_lines.clear();
  for (int64_t tap = 0; tap < taps; ++tap) {
    const auto at = p_.gather.tap_at(tap);
    scratch.tap_lines.push_back(window.data() + window.line(at[0], at[1]) + window.column(at[2]));
  }
  const float* channel = p_.source.data + (group_ * p_.source_group + k / taps) * p_.source.inner;
  for (int64_t i = 0; i < depth; ++i, b += kPanel) {
    if (i % taps == 0) window.fill(kernels_, round, channel + i / taps * p_.source.inner);
    const float* line = scratch.tap_lines[i % taps];
    if (step == 1 && i + 1 < depth) {
      kernels_.copy_panels(scratch.copies.data(), static_cast<int64_t>(scratch.copies.size()), line,
                           b);
      continue;
    }
    each_part([&](int32_t from, int64_t to, int64_t count) {
      for (int64_t l = 0; l < count; ++l) b[to + l] = line[from + l * step];
    });
  }
}

void ChannelOperands::pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes,
                             const Rounder& round, float* b) const {
  ChannelScratch& scratch = thread_scratch();
  const int64_t taps = p_.gather.tap_count();
  const bool windowed =
      k % taps == 0 && depth % taps == 0 &&
      scratch.window.plan(p_.gather, p_.source, lane, lanes, Window::Order::kPositions);
  scratch.measured = windowed && scratch.window.settled();
  if (windowed) {
    pack_window(k, depth, round, b);
  } else {
    line_runs(p_.gather.grid, lane, lanes, &scratch.runs);
    scratch.rows.resize(lanes * depth);
    pack_slowly(scratch.runs, group_, k, depth, scratch.rows.data());
    pack_panels(kernels_, scratch.rows.data(), 1, depth, depth, lanes, b);
  }
  if (const int64_t used = lanes % kPanel; used != 0) {
    float* end = b + lanes / kPanel * depth * kPanel;
    for (int64_t i = 0; i < depth; ++i, end += kPanel) std::fill(end + used, end + kPanel, 0.0f);
  }
  if (!scratch.measured) round(b, packed_floats(depth, lanes));
}

bool ChannelOperands::b_range(OperandRange* range) const {
  *range = thread_scratch().window.range();
  return thread_scratch().measured;
}

bool ChannelOperands::mark_lanes(int64_t k, int64_t depth, int64_t lane, int64_t lanes,
                                 uint16_t* absent) const {
  ChannelScratch& scratch = thread_scratch();
  const int64_t taps = p_.gather.tap_count();
  const int64_t panels = (lanes + kPanel - 1) / kPanel;
  const int64_t period = std::min(taps, depth);
  scratch.pattern.resize(taps);
  line_runs(p_.gather.grid, lane, lanes, &scratch.runs);
  bool any = false;
  p_.for_each_border(scratch.runs, [&](int64_t l, const int64_t* at) {
    if (!any) std::fill_n(absent, panels * depth, uint16_t{0});
    any = true;
    p_.tap_pattern(at, scratch.pattern.data());
    uint16_t* marks = absent + l / kPanel * depth;
    for (int64_t i = 0; i < period; ++i)
      marks[i] |= static_cast<uint16_t>(scratch.pattern[(k + i) % taps] << l % kPanel);
  });
  if (!any) return false;
  for (int64_t p = 0; p < panels; ++p, absent += depth) {
    for (int64_t i = period; i < depth; ++i) absent[i] = absent[i - period];
  }
  return true;
}

void ChannelOperands::row_ids(int64_t row, int64_t rows, uint64_t* ids) const {
  PositionOperands::lane_ids(row, rows, ids);
}

void ChannelOperands::lane_ids(int64_t lane, int64_t lanes, uint64_t* ids) const {
  PositionOperands::row_ids(lane, lanes, ids);
}

void ChannelOperands::store(int64_t row, int64_t rows, int64_t lane, int64_t lanes,
                            const float* values, int64_t stride) const {
  std::vector<LineRun>& runs = thread_scratch().runs;
  line_runs(p_.gather.grid, lane, lanes, &runs);
  const int64_t step = p_.result_step[2] * p_.result.spatial[2];
  for (size_t i = 0; i < runs.size();) {
    float* to = place(runs[i]) + row * p_.result.inner;
    const float* from = values + runs[i].first;
    const int64_t count = joined(runs, &i, step);
    for (int64_t r = 0; r < rows; ++r, to += p_.result.inner, from += stride) {
      if (step == 1) {
        std::memcpy(to, from, count * sizeof(float));
      } else {
        for (int64_t l = 0; l < count; ++l) to[l * step] = from[l];
      }
    }
  }
}

}  // namespace lpk
