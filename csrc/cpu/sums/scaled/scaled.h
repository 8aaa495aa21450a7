// What the driver of products by scale (csrc/cpu/drivers/scaled.cpp) hands to the kernels that make
// inner and outer sums at once.
#pragma once

#include "cpu/drivers/tile.h"

namespace lpk {

// Products first .. end - 1 of a block of k, which share their scales.
struct Segment {
  int64_t first, end;
};

// B of a block of k in bytes, times 2^shift, if all its codes fit.
struct BytePanels {
  enum { kUnknown, kMade, kRefused } state = kUnknown;
  int shift = 0;
  std::vector<uint32_t> words;
  std::vector<int32_t> start;  // of the sums: segments x lanes
};

// outer[r][l] <- outer[r][l] + the sum of a segment's products times both scales, for every segment
// of the block of k: float32 sums to nearest even, the products in order.
struct ScaledTile : Tile {
  const Segment* segments;
  int64_t segment_count;
  const float* row_scale;   // segments x rows, `row_scale_stride` apart
  const float* lane_scale;  // segments x lanes
  int64_t row_scale_stride;
  ScaleOrder scale_order;  // if exact, every product of two scales is a float32
  OperandRange row_range;  // of the scales
  OperandRange lane_range;
  BytePanels* bytes;
  int64_t a_stride;  // between rows of A, for sums of bytes
};

// Whether this processor has AVX512-VNNI beside AVX-512.
bool has_vnni();

}  // namespace lpk
