// Rows of A are channels, lanes are positions of an image: fprop and dgrad of few channels.
#include <algorithm>
#include <cstring>

#include "conv_operands.h"

namespace lpk {
namespace {

struct ChannelScratch {
  std::vector<float> rows;
  std::vector<uint8_t> pattern;
  std::vector<PanelCopy> copies;
  std::vector<const float*> tap_lines;
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

void ChannelOperands::pack_a(Interval rows, Interval k, const Rounder& round, float* a) const {
  const int64_t taps = p_.gather.tap_count();
  const auto& offsets = p_.weight_offset;
  const float* from = p_.weight + group_ * p_.weight_group + rows.first * p_.weight_lane;
  const bool whole = k.first % taps == 0 && k.count % taps == 0;
  const int64_t first = k.first / taps * p_.weight_channel;
  float* to = a;
  if (taps == 1 && p_.weight_lane == 1) {
    kernels_.transpose(from + offsets[0] + first, p_.weight_channel, k.count, rows.count, a,
                       k.count);
    return round(a, rows.count * k.count);
  }
  if (!p_.consecutive && whole) {
    for (int64_t r = 0; r < rows.count; r += kWeightRows)
      pack_weights(p_, from + first + r * p_.weight_lane, std::min(kWeightRows, rows.count - r),
                   k.count, a + r * k.count);
    return round(a, rows.count * k.count);
  }
  for (int64_t r = 0; r < rows.count; ++r, from += p_.weight_lane) {
    if (p_.consecutive && p_.weight_channel == taps) {
      to = std::copy_n(from + offsets[0] + k.first, k.count, to);
      continue;
    }
    if (p_.consecutive && whole) {
      for (int64_t i = 0; i < k.count; i += taps)
        to = std::copy_n(from + first + i / taps * p_.weight_channel + offsets[0], taps, to);
      continue;
    }
    int64_t tap = k.first % taps;
    const float* channel = from + first;
    for (int64_t i = 0; i < k.count; ++i) {
      *to++ = channel[offsets[tap]];
      if (++tap < taps) continue;
      tap = 0;
      channel += p_.weight_channel;
    }
  }
  round(a, rows.count * k.count);
}

// Packs whole channels through the window. A copy of sixteen may run past its part of a panel, into
// the part that is written after it; the last tap may not.
void ChannelOperands::pack_window(Interval k, const Rounder& round, float* b) const {
  ChannelScratch& scratch = thread_scratch();
  Window& window = ConvScratch::of_thread().window;
  const int64_t taps = p_.gather.tap_count();
  const int64_t step = window.position_step();
  scratch.copies.clear();
  const auto each_part = [&](const auto& visit) {
    for (const LineRun& run : window.runs()) {
      int64_t count;
      for (int64_t i = 0; i < run.count; i += count) {
        const int64_t lane = (run.first + i) % kPanel;
        count = std::min(kPanel - lane, run.count - i);
        visit(window.base()[run.first + i], (run.first + i) / kPanel * k.count * kPanel + lane,
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
  const float* channel = p_.source.data + (group_ * p_.channels + k.first / taps) * p_.source.inner;
  for (int64_t i = 0; i < k.count; ++i, b += kPanel) {
    if (i % taps == 0) window.fill(kernels_, round, channel + i / taps * p_.source.inner);
    const float* line = scratch.tap_lines[i % taps];
    if (step == 1 && i + 1 < k.count) {
      kernels_.copy_panels(scratch.copies.data(), static_cast<int64_t>(scratch.copies.size()), line,
                           b);
      continue;
    }
    each_part([&](int32_t from, int64_t to, int64_t count) {
      for (int64_t l = 0; l < count; ++l) b[to + l] = line[from + l * step];
    });
  }
}

void ChannelOperands::pack_b(Interval k, Interval lanes, const Rounder& round, float* b) const {
  ConvScratch& scratch = ConvScratch::of_thread();
  const int64_t taps = p_.gather.tap_count();
  const bool windowed = k.first % taps == 0 && k.count % taps == 0 &&
                        scratch.window.plan(p_.gather, p_.source, lanes, Window::Order::kPositions);
  scratch.measured = windowed && scratch.window.settled();
  if (windowed) {
    pack_window(k, round, b);
  } else {
    line_runs(p_.gather.grid, lanes, &scratch.runs);
    std::vector<float>& rows = thread_scratch().rows;
    rows.resize(lanes.count * k.count);
    pack_slowly(scratch.runs, group_, k, rows.data());
    pack_panels(kernels_, rows.data(), 1, k.count, k.count, lanes.count, b);
  }
  if (const int64_t tail = lanes.count % kPanel; tail != 0) {
    float* end = b + lanes.count / kPanel * k.count * kPanel;
    for (int64_t i = 0; i < k.count; ++i, end += kPanel) std::fill(end + tail, end + kPanel, 0.0f);
  }
  if (!scratch.measured) round(b, packed_floats(k.count, lanes.count));
}

bool ChannelOperands::b_range(OperandRange* range) const {
  return PositionOperands::a_range(range);
}

bool ChannelOperands::mark_lanes(Interval k, Interval lanes, uint16_t* absent) const {
  std::vector<uint8_t>& pattern = thread_scratch().pattern;
  std::vector<LineRun>& runs = ConvScratch::of_thread().runs;
  const int64_t taps = p_.gather.tap_count();
  const int64_t panels = (lanes.count + kPanel - 1) / kPanel;
  const int64_t period = std::min(taps, k.count);
  pattern.resize(taps);
  line_runs(p_.gather.grid, lanes, &runs);
  bool any = false;
  p_.for_each_border(runs, [&](int64_t l, const int64_t* at) {
    if (!any) std::fill_n(absent, panels * k.count, uint16_t{0});
    any = true;
    p_.tap_pattern(at, pattern.data());
    uint16_t* marks = absent + l / kPanel * k.count;
    for (int64_t i = 0; i < period; ++i)
      marks[i] |= static_cast<uint16_t>(pattern[(k.first + i) % taps] << l % kPanel);
  });
  if (!any) return false;
  for (int64_t p = 0; p < panels; ++p, absent += k.count) {
    for (int64_t i = period; i < k.count; ++i) absent[i] = absent[i - period];
  }
  return true;
}

void ChannelOperands::row_ids(Interval rows, uint64_t* ids) const {
  PositionOperands::lane_ids(rows, ids);
}

void ChannelOperands::lane_ids(Interval lanes, uint64_t* ids) const {
  PositionOperands::row_ids(lanes, ids);
}

void ChannelOperands::store(Interval rows, Interval lanes, const float* values,
                            int64_t stride) const {
  std::vector<LineRun>& runs = ConvScratch::of_thread().runs;
  line_runs(p_.gather.grid, lanes, &runs);
  const int64_t step = p_.result_step[2] * p_.result.spatial[2];
  for (size_t i = 0; i < runs.size();) {
    float* to = place(runs[i]) + rows.first * p_.result.inner;
    const float* from = values + runs[i].first;
    const int64_t count = joined(runs, &i, step);
    for (int64_t r = 0; r < rows.count; ++r, to += p_.result.inner, from += stride) {
      if (step == 1) {
        std::memcpy(to, from, count * sizeof(float));
      } else {
        for (int64_t l = 0; l < count; ++l) to[l * step] = from[l];
      }
    }
  }
}

}  // namespace lpk
