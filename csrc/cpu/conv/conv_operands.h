// The two sides of a convolution's product, as blocks: positions of a grid as rows (fprop, dgrad)
// or as k (wgrad).
#pragma once

#include "conv_window.h"
#include "cpu/drivers/gemm.h"

namespace lpk {

// One side of a convolution with sums over (channel, tap): rows are positions of a grid. All groups
// share it.
struct PositionPass {
  Gather gather;                       // its taps, row-major, are those of each channel
  std::vector<int64_t> weight_offset;  // of each tap
  bool consecutive;                    // the taps are, in the weight
  // The position of every product in the whole sum, and then the length of that sum (gemm.h); empty
  // if no tap of the kernel is left out.
  std::vector<int64_t> position;
  // Positions read only from inside the source, in each dimension.
  int64_t inside_from[kSpatial], inside_to[kSpatial];

  Image<const float> source;
  const float* weight;
  int64_t weight_channel, weight_lane;  // strides
  int64_t channels, lanes;              // of a group
  int64_t weight_group;                 // stride

  // Where position p of the grid goes: p * result_step + result_phase of the result.
  Image<float> result;
  int64_t result_size[kSpatial], result_step[kSpatial], result_phase[kSpatial];

  int64_t rows(int64_t batch) const { return batch * gather.grid_volume(); }
  // Derives weight_offset and consecutive, from the strides of the weight in space, and position.
  void list_taps(const int64_t* weight_spatial);
  // Derives inside_from and inside_to.
  void find_inside();
  // 1 for every tap that falls outside at this position.
  void tap_pattern(const int64_t* at, uint8_t* pattern) const;
  // Calls border(index, position) for the positions that have a tap outside.
  template <class Border>
  void for_each_border(const std::vector<LineRun>& runs, const Border& border) const {
    for (const LineRun& run : runs) {
      bool line_inside = true;
      for (int i = 0; i + 1 < kSpatial; ++i)
        line_inside &= run.at[i] >= inside_from[i] && run.at[i] < inside_to[i];
      for (int64_t r = 0; r < run.count; ++r) {
        const int64_t at[kSpatial] = {run.at[0], run.at[1], run.at[2] + r};
        if (!line_inside || at[2] < inside_from[2] || at[2] >= inside_to[2])
          border(run.first + r, at);
      }
    }
  }
};

class PositionOperands : public Operands {
 public:
  PositionOperands(const PositionPass& pass, int64_t group)
      : PositionOperands(pass, group, group * pass.lanes) {}
  void pack_a(Interval rows, Interval k, const Rounder& round, float* a) const override;
  bool a_range(OperandRange* range) const override;
  bool mark_rows(Interval rows, Interval k, uint8_t* absent) const override;
  void pack_b(Interval k, Interval lanes, const Rounder& round, float* b) const override;
  void row_ids(Interval rows, uint64_t* ids) const override;
  void lane_ids(Interval lanes, uint64_t* ids) const override;
  void store(Interval rows, Interval lanes, const float* values, int64_t stride) const override;

 protected:
  PositionOperands(const PositionPass& pass, int64_t group, int64_t first)
      : p_(pass), group_(group), first_(first) {}
  // Element by element: a[position][k] of a group.
  void pack_slowly(const std::vector<LineRun>& runs, int64_t group, Interval k, float* a) const;
  // Where the first position of a run goes, lane 0.
  float* place(const LineRun& run) const;
  int64_t joined(const std::vector<LineRun>& runs, size_t* i, int64_t step) const;

  const PositionPass& p_;
  int64_t group_;
  int64_t first_;  // the lanes begin here, counted from the first group's

 private:
  void pack_channels(Window& window, int64_t rows, int64_t channel, int64_t depth,
                     const Rounder& round, float* a) const;
  void pack_columns(Window& window, int64_t rows, const float* from, int64_t depth,
                    const Rounder& round, float* a) const;
  void pack_panel(Interval k, const float* from, int64_t width, float* b) const;
  void store_apart(const float* from, int64_t stride, int64_t rows, int64_t lanes, int64_t step,
                   float* to) const;
};

// The same with the sides exchanged, for few channels: rows are channels of the result, lanes are
// positions.
class ChannelOperands : public PositionOperands {
 public:
  using PositionOperands::PositionOperands;
  void pack_a(Interval rows, Interval k, const Rounder& round, float* a) const override;
  void pack_b(Interval k, Interval lanes, const Rounder& round, float* b) const override;
  bool a_range(OperandRange*) const override { return false; }
  bool b_range(OperandRange* range) const override;
  bool mark_rows(Interval, Interval, uint8_t*) const override { return false; }
  bool mark_lanes(Interval k, Interval lanes, uint16_t* absent) const override;
  void row_ids(Interval rows, uint64_t* ids) const override;
  void lane_ids(Interval lanes, uint64_t* ids) const override;
  void store(Interval rows, Interval lanes, const float* values, int64_t stride) const override;

 private:
  void pack_window(Interval k, const Rounder& round, float* b) const;
};

// Lanes are channels of several groups: every lane reads a source of its own. Lanes that follow
// each other are equally far apart in the result, also from group to group.
class SpreadPositions : public PositionOperands {
 public:
  SpreadPositions(const PositionPass& pass, int64_t first, int64_t lanes)
      : PositionOperands(pass, 0, first), lanes_(lanes) {}
  void spread_a(Interval rows, Interval k, const Rounder& round, TileOperands* tile) const override;
  void pack_b(Interval k, Interval lanes, const Rounder& round, float* b) const override;

 private:
  int64_t lanes_;
};

// Sums over the positions of dy: rows are (channel, tap) of the weight.
struct TapPass {
  Gather gather;  // every tap of the kernel
  Image<const float> x, dy;
  Image<float> dw;
  int64_t in_channels, out_channels;  // of a group
};

class TapOperands : public Operands {
 public:
  TapOperands(const TapPass& pass, int64_t group)
      : TapOperands(pass, group, group * pass.out_channels) {}
  void pack_a(Interval rows, Interval k, const Rounder& round, float* a) const override;
  bool a_range(OperandRange* range) const override;
  bool mark_rows(Interval rows, Interval k, uint8_t* absent) const override;
  void pack_b(Interval k, Interval lanes, const Rounder& round, float* b) const override;
  void row_ids(Interval rows, uint64_t* ids) const override;
  void lane_ids(Interval lanes, uint64_t* ids) const override;
  void store(Interval rows, Interval lanes, const float* values, int64_t stride) const override;

 protected:
  TapOperands(const TapPass& pass, int64_t group, int64_t first)
      : p_(pass), group_(group), first_(first) {}
  void pack_slowly(const std::vector<LineRun>& runs, int64_t group, Interval rows, int64_t depth,
                   float* a) const;
  // The channel of x that a row reads.
  const float* channel(int64_t group, int64_t row) const;

  const TapPass& p_;
  int64_t group_;
  int64_t first_;  // the lanes begin here, counted from the first group's
};

// Lanes are output channels of several groups. The groups' columns have different numbers in the
// key of a draw, so that only sums without draws run this way.
class SpreadTaps : public TapOperands {
 public:
  SpreadTaps(const TapPass& pass, int64_t first, int64_t lanes)
      : TapOperands(pass, 0, first), lanes_(lanes) {}
  void spread_a(Interval rows, Interval k, const Rounder& round, TileOperands* tile) const override;

 private:
  int64_t lanes_;
};

}  // namespace lpk
