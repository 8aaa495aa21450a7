// Rounding of tensors: elementwise (float and fixed formats), per tile (block formats), per slice
// (affine).
#pragma once

#include <cstdint>

#include "common/blocks.h"
#include "cpu/drivers/element_types.h"
#include "cpu/drivers/tile.h"

namespace lpk {

// A tensor in row-major order. The axis of an affine format splits it into (outer, length, inner),
// a block format has a grid.
struct QuantizeArgs : ElementRounding {
  const void* x;
  void* y;
  ElementType x_type;
  ElementType y_type;
  int64_t count;
  int64_t outer, length, inner;
  Grid grid;
  int threads;
  int64_t stream_bytes;  // from this much memory, read and written, results go past the caches
  // What happened is added to the counts of common/count.h, with the histogram or without it; y may
  // be null then. Null: nothing is counted.
  int64_t* counts;
  bool histogram;
  // Of affine formats: low ends of all slices, then high ones. Of block formats: the magnitude that
  // stands for the largest of the tensor, or those of its lines. Null: the tensor's own.
  const double* limits;
  // Of block formats: y takes the codes, and these the scales of the grid and of the tensor or its
  // lines. Null: y takes the values.
  float* scales;
  float* tensor_scale;
};

void quantize_elements(const QuantizeArgs& args);
// Values where they lie, by the integers of a float or fixed format and a rounding
// that draws nothing; null leaves them as they are.
void round_in_place(const Kernels& kernel, const int64_t* quantizer, float* x, int64_t count);
void quantize_blocks(const QuantizeArgs& args);
void quantize_affine(const QuantizeArgs& args);

}  // namespace lpk
