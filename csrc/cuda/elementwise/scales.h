// Formats with scales on a CUDA device, and codes: blocks and affine slices quantized, values
// packed and unpacked. No CUDA type crosses this header.
#pragma once

#include <cstdint>

#include "quantize.h"

namespace lpk::cuda {

// A dense tensor in row-major order, split by the axis of its format.
struct AxisSizes {
  int64_t outer, length, inner;
};

// out = x rounded. Both are float32, or x is of another type. `quantizer` holds the 16 integers of
// a block format, or the 8 of an affine one, then rounding, random_bits, rng. For affine formats
// `ends` has 2 and `lines` has 4 numbers of 8 bytes for each slice; their contents are arbitrary.
struct ScaledArgs {
  const void* x;
  ElementType x_type;
  float* out;
  AxisSizes sizes;
  const int64_t* quantizer;
  Draws draws;
  int64_t* ends;
  double* lines;
};
void quantize_blocks(const ScaledArgs& args, void* stream);
void quantize_affine(const ScaledArgs& args, void* stream);
// Makes only the lines of an affine format: between the ends of every slice, which it finds.
void affine_lines(const ScaledArgs& args, void* stream);

// Dense codes; `format` has 8 integers, or 16 for a block format.
struct CodeArgs {
  const int64_t* format;
  AxisSizes sizes;
};
// There are as many `words` of 32 bits as the codes reach into. The smallest index of a value
// without a code becomes *refused, if it is below what is there.
void pack_codes(const CodeArgs& args, const float* x, uint32_t* words, int64_t* refused,
                void* stream);
// `bytes` says how many bytes there are at `codes`.
void unpack_codes(const CodeArgs& args, const uint8_t* codes, int64_t bytes, float* x,
                  void* stream);

}  // namespace lpk::cuda
