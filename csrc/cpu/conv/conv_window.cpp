#include "conv_window.h"

#include <algorithm>

namespace lpk {
namespace {

// Copies of taps run past their end by less than this.
constexpr int64_t kSlack = 16;

// to[i] = from[i * step]; kStep 0: any.
template <int kStep>
void copy_strided(const float* from, int64_t any_step, int64_t count, float* to) {
  const int64_t step = kStep == 0 ? any_step : kStep;
  for (int64_t i = 0; i < count; ++i) to[i] = from[i * step];
}

void copy_run(const float* from, int64_t step, int64_t count, float* to) {
  if (step == 1) return copy_strided<1>(from, step, count, to);
  if (step == -1) return copy_strided<-1>(from, step, count, to);
  if (step == 2) return copy_strided<2>(from, step, count, to);
  copy_strided<0>(from, step, count, to);
}

}  // namespace

void line_runs(const int64_t* grid, Interval positions, std::vector<LineRun>* runs) {
  runs->clear();
  const int64_t end = positions.first + positions.count;
  for (int64_t linear = positions.first; linear < end;) {
    LineRun run;
    int64_t rest = linear;
    for (int i = kSpatial - 1; i >= 0; --i) {
      run.at[i] = rest % grid[i];
      rest /= grid[i];
    }
    run.n = rest;
    run.first = linear - positions.first;
    run.count = std::min(grid[2] - run.at[2], end - linear);
    runs->push_back(run);
    linear += run.count;
  }
}

float element_at(const Gather& gather, const Image<const float>& image, const float* channel,
                 const LineRun& run, int64_t i, const std::array<int64_t, kSpatial>& tap) {
  const float* from = channel + run.n * image.outer;
  for (int axis = 0; axis < kSpatial; ++axis) {
    const int64_t at = run.at[axis] + (axis == kSpatial - 1 ? i : 0);
    const int64_t offset = gather.taps[axis][tap[axis]].offset;
    if (!gather.inside(axis, at, offset)) return 0.0f;
    from += (at * gather.step[axis] + offset) * image.spatial[axis];
  }
  return *from;
}

// Lines of the same n and d stay together. A line that is not whole may do so only if it is alone
// or at an end.
void Window::cut_pieces() {
  pieces_.clear();
  const int64_t width = gather_->grid[2];
  for (const LineRun& run : runs_) {
    const int64_t w1 = run.at[2] + run.count - 1;
    if (!pieces_.empty()) {
      Piece& last = pieces_.back();
      if (last.n == run.n && last.d == run.at[0]) {
        last.h1 = run.at[1];
        last.w0 = 0;
        last.w1 = width - 1;
        last.count += run.count;
        continue;
      }
    }
    pieces_.push_back(
        {run.n, run.at[0], run.at[1], run.at[1], run.at[2], w1, run.first, run.count});
  }
}

bool Window::plan(const Gather& gather, const Image<const float>& image, Interval positions,
                  Order order, int64_t copies, int64_t width) {
  gather_ = &gather;
  image_ = image;
  for (int i = 0; i < kSpatial; ++i) {
    const int64_t a = gather.taps[i].front().offset, b = gather.taps[i].back().offset;
    least_[i] = std::min(a, b);
    most_[i] = std::max(a, b);
  }
  mirrored_ = order == Order::kTaps && gather.taps[2].front().offset > gather.taps[2].back().offset;
  phases_ = order == Order::kPositions && width == 1 ? gather.step[2] : 1;
  line_runs(gather.grid, positions, &runs_);
  cut_pieces();

  pitch_ = 0;
  int64_t height = 0;
  for (const Piece& p : pieces_) {
    pitch_ = std::max(pitch_, (p.w1 - p.w0) * gather.step[2] + most_[2] - least_[2] + 1);
    height = std::max(height, (p.h1 - p.h0) * gather.step[1] + most_[1] - least_[1] + 1);
  }
  pitch_ = (pitch_ + phases_ - 1) / phases_ * phases_;
  plane_ = pitch_ * height;
  const int64_t piece_size = plane_ * static_cast<int64_t>(gather.taps[0].size());
  size_ = piece_size * static_cast<int64_t>(pieces_.size());
  settled_ = size_ <= positions.count * gather.tap_count();
  range_ = range_of_zeros();
  const int64_t floats = size_ * copies * width + kSlack;
  if (floats > kMaxFloats) return false;

  buffer_.assign(floats, 0.0f);
  base_.resize(positions.count);
  copies_.clear();
  panels_.clear();
  for (size_t i = 0; i < pieces_.size(); ++i)
    plan_copies(pieces_[i], static_cast<int64_t>(i) * piece_size);
  size_t piece = 0;
  for (const LineRun& run : runs_) {
    while (run.first >= pieces_[piece].first + pieces_[piece].count) ++piece;
    const Piece& p = pieces_[piece];
    const int64_t line =
        static_cast<int64_t>(piece) * piece_size + (run.at[1] - p.h0) * gather.step[1] * pitch_;
    const int64_t column =
        gather.step[2] / phases_ * (mirrored_ ? p.w1 - run.at[2] : run.at[2] - p.w0);
    for (int64_t i = 0; i < run.count; ++i)
      base_[run.first + i] = static_cast<int32_t>(line + column + i * position_step());
    for (int64_t i = 0; i < run.count; i += kPanel)
      panels_.push_back({base_[run.first + i], static_cast<int32_t>(run.first + i)});
  }
  return true;
}

// The valid part of every line that some tap of the piece reads.
void Window::plan_copies(const Piece& p, int64_t start) {
  const Gather& g = *gather_;
  const int64_t height = (p.h1 - p.h0) * g.step[1] + most_[1] - least_[1] + 1;
  needed_.assign(height, 0);
  for (int64_t h = p.h0; h <= p.h1; ++h) {
    for (const AxisTap& tap : g.taps[1])
      needed_[(h - p.h0) * g.step[1] + tap.offset - least_[1]] = 1;
  }
  const int64_t left = p.w0 * g.step[2] + least_[2];
  const int64_t right = p.w1 * g.step[2] + most_[2];
  const int64_t from = std::max<int64_t>(left, 0);
  const int64_t to = std::min(right, g.source[2] - 1);
  if (from > to) return;
  for (size_t i = 0; i < g.taps[0].size(); ++i) {
    const int64_t d = p.d * g.step[0] + g.taps[0][i].offset;
    if (d < 0 || d >= g.source[0]) continue;
    for (int64_t y = 0; y < height; ++y) {
      const int64_t h = p.h0 * g.step[1] + least_[1] + y;
      if (!needed_[y] || h < 0 || h >= g.source[1]) continue;
      const int64_t line = start + static_cast<int64_t>(i) * plane_ + y * pitch_;
      const int64_t source = p.n * image_.outer + d * image_.spatial[0] + h * image_.spatial[1];
      if (mirrored_) {
        copies_.push_back({source + to * image_.spatial[2], line + right - to, to - from + 1});
        continue;
      }
      for (int64_t x = from; x <= std::min(to, from + phases_ - 1); ++x) {
        copies_.push_back({source + x * image_.spatial[2], line + place_in_line(x - left),
                           (to - x) / phases_ + 1});
      }
    }
  }
}

void Window::fill(const Kernels& kernels, const Rounder& round, const float* channel) {
  const int64_t stride = mirrored_ ? -image_.spatial[2] : image_.spatial[2] * phases_;
  for (const Copy& c : copies_) copy_run(channel + c.from, stride, c.count, buffer_.data() + c.to);
  if (!settled_) return;
  round(buffer_.data(), size_);
  kernels.measure(buffer_.data(), size_, &range_);
}

void Window::fill_panel(const Kernels& kernels, int64_t copy, const float* const* channels,
                        int64_t lanes) {
  const int64_t step = image_.spatial[2];
  const int64_t apart = lanes > 1 ? channels[1] - channels[0] : 1;
  bool even = true;
  for (int64_t l = 1; l < lanes; ++l) even &= channels[l] - channels[l - 1] == apart;
  for (const Copy& c : copies_) {
    float* to = buffer_.data() + (copy * size_ + c.to) * kPanel;
    if (even) {
      pack_panels(kernels, channels[0] + c.from, step, apart, c.count, lanes, to);
      continue;
    }
    for (int64_t l = 0; l < lanes; ++l) {
      const float* from = channels[l] + c.from;
      for (int64_t i = 0; i < c.count; ++i) to[i * kPanel + l] = from[i * step];
    }
  }
}

void Window::copy(const Kernels& kernels, const std::array<int64_t, kSpatial>& tap,
                  float* to) const {
  const float* from = data() + line(tap[0], tap[1]) + column(tap[2]);
  if (position_step() == 1) {
    kernels.copy_panels(panels_.data(), static_cast<int64_t>(panels_.size()), from, to);
    return;
  }
  for (const LineRun& run : runs_)
    copy_run(from + base_[run.first], position_step(), run.count, to + run.first);
}

}  // namespace lpk
