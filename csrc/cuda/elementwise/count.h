// Rounding that counts on a CUDA device, and affine formats in ranges that are given. No CUDA type
// crosses this header.
#pragma once

#include <cstdint>

#include "scales.h"

namespace lpk::cuda {

// What the kernels add to. counts: the counts of common/count.h on the device, and behind them the
// histogram, if there is one; null where nothing is counted. limits: the low ends of all slices of
// an affine format, then the high ones, on the device; null stands for the slices' own ends.
struct Counting {
  int64_t* counts;
  bool histogram;
  const double* limits;
};

// Does what quantize does, and counts; a null out is not written.
void count_elements(const void* x, ElementType x_type, void* out, ElementType out_type,
                    const Views& views, const int64_t* quantizer, const Draws& draws,
                    const Counting& counting, void* stream);
// These do what quantize_blocks and quantize_affine do, and count; a null out is not written. With
// limits no ends are needed.
void count_blocks(const ScaledArgs& args, const Counting& counting, void* stream);
void count_affine(const ScaledArgs& args, const Counting& counting, void* stream);

}  // namespace lpk::cuda
