// Which elements of an image a grid of positions reads, tap by tap, and a copy of the part that a
// few positions need.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "conv.h"
#include "cpu/drivers/aligned.h"
#include "cpu/drivers/gemm.h"
#include "cpu/drivers/tile.h"

namespace lpk {

// The taps of one dimension: position p reads source[p * step + offset].
struct AxisTap {
  int64_t tap;  // in the kernel
  int64_t offset;
};

// Positions (n, d, h, w) of a grid and the taps that they may read; in each dimension offsets
// ascend, or all descend, by the same amount from tap to tap.
struct Gather {
  int64_t grid[kSpatial];
  int64_t source[kSpatial];
  int64_t step[kSpatial];
  int64_t kernel[kSpatial];  // all taps, also those never read from here
  std::vector<AxisTap> taps[kSpatial];

  int64_t grid_volume() const { return grid[0] * grid[1] * grid[2]; }
  int64_t kernel_volume() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t tap_count() const {
    return static_cast<int64_t>(taps[0].size() * taps[1].size() * taps[2].size());
  }
  // Where a tap of tap_count lies in `taps`.
  std::array<int64_t, kSpatial> tap_at(int64_t tap) const {
    const int64_t width = static_cast<int64_t>(taps[2].size());
    const int64_t height = static_cast<int64_t>(taps[1].size());
    return {tap / width / height, tap / width % height, tap % width};
  }
  bool inside(int axis, int64_t position, int64_t offset) const {
    const int64_t at = position * step[axis] + offset;
    return at >= 0 && at < source[axis];
  }
};

// Consecutive positions of one line of the grid.
struct LineRun {
  int64_t n, at[kSpatial];  // of the first position
  int64_t first, count;     // among the positions of the window
};

// Positions as line runs.
void line_runs(const int64_t* grid, Interval positions, std::vector<LineRun>* runs);
// The element of a channel that a tap reads at position `i` of a run: 0 outside of the image.
float element_at(const Gather& gather, const Image<const float>& image, const float* channel,
                 const LineRun& run, int64_t i, const std::array<int64_t, kSpatial>& tap);

// The source lines that some positions read, of one channel, with zeros for padding: the element
// that tap (i, j, k) of position p reads is data()[base()[p] + line(i, j) + column(k)].
// Several channels may lie side by side, as the lanes of a panel.
class Window {
 public:
  // Consecutive taps (mirrored if their offsets descend) or consecutive positions follow each other
  // in the window.
  enum class Order { kTaps, kPositions };
  // 1 MB: real shapes need far less, and a thread may use more.
  static constexpr int64_t kMaxFloats = 1 << 18;
  // False if this needs more memory than a window may have. `copies` of the window lie behind each
  // other, of `width` channels side by side.
  bool plan(const Gather& gather, const Image<const float>& image, Interval positions, Order order,
            int64_t copies = 1, int64_t width = 1);
  // Copies a channel in; rounds and measures it, if it is `settled`.
  void fill(const Kernels& kernels, const Rounder& round, const float* channel);
  // Whether channels are rounded and measured in the window: they are if they have fewer elements
  // there than in the blocks packed from the window.
  bool settled() const { return settled_; }
  // The range of all that `fill` has copied since the plan was made, if that is settled.
  const OperandRange& range() const { return range_; }
  // Copies `lanes` channels into copy `copy`, side by side: channels[l] is that of lane l.
  void fill_panel(const Kernels& kernels, int64_t copy, const float* const* channels,
                  int64_t lanes);
  // Copies a tap's element for every position, and fewer than kPanel floats behind them.
  void copy(const Kernels& kernels, const std::array<int64_t, kSpatial>& tap, float* to) const;

  const float* data() const { return buffer_.data(); }
  float* data() { return buffer_.data(); }
  int64_t floats() const { return static_cast<int64_t>(buffer_.size()); }
  // Elements of a copy, of each channel.
  int64_t size() const { return size_; }
  const int32_t* base() const { return base_.data(); }
  const std::vector<LineRun>& runs() const { return runs_; }
  int64_t line(int64_t d, int64_t h) const {
    return d * plane_ + (gather_->taps[1][h].offset - least_[1]) * pitch_;
  }
  int64_t column(int64_t w) const {
    const int64_t offset = gather_->taps[2][w].offset;
    return mirrored_ ? most_[2] - offset : place_in_line(offset - least_[2]);
  }
  // From a position of a line to the next.
  int64_t position_step() const {
    return mirrored_ ? -gather_->step[2] : gather_->step[2] / phases_;
  }

 private:
  // A part of the window: a run of lines with the same n and d.
  struct Piece {
    int64_t n, d, h0, h1, w0, w1;
    int64_t first, count;
  };
  struct Copy {
    int64_t from, to, count;
  };

  // Columns equal modulo phases_ lie together.
  int64_t place_in_line(int64_t column) const {
    return column % phases_ * (pitch_ / phases_) + column / phases_;
  }
  void cut_pieces();
  void plan_copies(const Piece& piece, int64_t start);

  const Gather* gather_ = nullptr;
  bool settled_ = false;
  OperandRange range_{};
  Image<const float> image_{};
  bool mirrored_ = false;
  int64_t phases_ = 1;
  int64_t least_[kSpatial], most_[kSpatial];
  int64_t pitch_ = 0, plane_ = 0, size_ = 0;
  std::vector<LineRun> runs_;
  std::vector<Piece> pieces_;
  std::vector<Copy> copies_;
  std::vector<PanelCopy> panels_;
  std::vector<uint8_t> needed_;
  std::vector<int32_t> base_;
  AlignedFloats buffer_;
};

// What a thread packs and stores blocks with, in any layout.
struct ConvScratch {
  Window window;
  std::vector<LineRun> runs;
  bool measured = false;  // whether the window has measured what was packed from it last

  static ConvScratch& of_thread() {
    thread_local ConvScratch scratch;
    return scratch;
  }
};

}  // namespace lpk
