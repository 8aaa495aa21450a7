// The two sides of a convolution's product, as blocks: positions of a grid as rows (fprop, dgrad)
// or as k (wgrad).
#pragma once

#include "conv_window.h"
#include "gemm.h"

namespace lpk {

// One side of a convolution whose sums run over (channel, tap): rows are positions of a grid. Every
// group shares it.
struct PositionPass {
  Gather gather;                       // its taps, row-major, are those of each channel
  std::vector<int64_t> weight_offset;  // of each tap
  // Of every product in the whole sum, and the length of that (gemm.h); empty if no tap of the
  // kernel is left out.
  std::vector<int64_t> position;
  // Positions read only from inside the source, in each dimension.
  int64_t inside_from[kSpatial], inside_to[kSpatial];

  Image<const float> source;
  const float* weight;
  int64_t weight_channel, weight_lane;  // strides
  int64_t channels, lanes;              // of a group, as are these group strides
  int64_t source_group, weight_group, result_group;

  // Where position p of the grid goes: p * result_step + result_phase of the result.
  Image<float> result;
  int64_t result_size[kSpatial], result_step[kSpatial], result_phase[kSpatial];

  int64_t rows(int64_t batch) const { return batch * gather.grid_volume(); }
  // Derives weight_offset, from the strides of the weight in space, and position.
  void list_taps(const int64_t* weight_spatial);
  // Derives inside_from and inside_to.
  void find_inside();
};

class PositionOperands : public Operands {
 public:
  PositionOperands(const PositionPass& pass, int64_t group) : p_(pass), group_(group) {}
  bool pack_a(int64_t row, int64_t rows, int64_t k, int64_t depth, float* a,
              uint8_t* absent) const override;
  void pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes, float* b) const override;
  void row_ids(int64_t row, int64_t rows, uint64_t* ids) const override;
  void lane_ids(int64_t lane, int64_t lanes, uint64_t* ids) const override;
  void store(int64_t row, int64_t rows, int64_t lane, int64_t lanes, const float* values,
             int64_t stride) const override;

 private:
  void pack_channels(Window& window, int64_t rows, int64_t channel, int64_t depth, float* a) const;
  void pack_columns(Window& window, int64_t rows, const float* from, int64_t depth, float* a) const;
  void pack_slowly(const std::vector<LineRun>& runs, int64_t k, int64_t depth, float* a) const;
  bool mark_absent(const std::vector<LineRun>& runs, int64_t rows, int64_t k, int64_t depth,
                   uint8_t* absent) const;
  void tap_pattern(const int64_t* at, uint8_t* pattern) const;
  void pack_panel(int64_t k, int64_t depth, const float* from, int64_t width, float* b) const;
  void store_apart(const float* from, int64_t stride, int64_t rows, int64_t lanes, int64_t step,
                   float* to) const;
  float* place(const LineRun& run) const;

  const PositionPass& p_;
  int64_t group_;
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
  TapOperands(const TapPass& pass, int64_t group) : p_(pass), group_(group) {}
  bool pack_a(int64_t row, int64_t rows, int64_t k, int64_t depth, float* a,
              uint8_t* absent) const override;
  void pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes, float* b) const override;
  void row_ids(int64_t row, int64_t rows, uint64_t* ids) const override;
  void lane_ids(int64_t lane, int64_t lanes, uint64_t* ids) const override;
  void store(int64_t row, int64_t rows, int64_t lane, int64_t lanes, const float* values,
             int64_t stride) const override;

 private:
  bool mark_absent(const std::vector<LineRun>& runs, int64_t row, int64_t rows, int64_t depth,
                   uint8_t* absent) const;
  const float* channel(int64_t row) const;

  const TapPass& p_;
  int64_t group_;
};

}  // namespace lpk
