// Dense codes: a b-bit format costs b bits a value, in element order, least significant bit first.
#pragma once

#include <cstdint>

#include "common/blocks.h"

namespace lpk {

struct PackArgs {
  const int64_t* format;  // 8 integers, 16 or 24 for a block format
  int64_t count;
  Grid grid;  // of a block format
  int threads;
  // Of float and fixed formats and tables: values are rounded by these integers first, without
  // draws. Null: they are values of the format.
  const int64_t* quantizer = nullptr;
};

// Index of the first value that has no code (infinity, or NaN where the format has none), -1 if all
// were packed.
int64_t pack(const PackArgs& args, const float* x, uint8_t* codes);
void unpack(const PackArgs& args, const uint8_t* codes, float* x);
int64_t packed_bytes(const PackArgs& args);

// In pack_blocks.cpp: the same for block formats that are packed block by block. scale: of every
// block of codes, or null where x are values, whose scales follow from them by the rule "floor".
int64_t pack_blocks(const PackArgs& args, const float* x, const float* scale, uint8_t* codes);
void unpack_blocks(const PackArgs& args, const uint8_t* codes, float* x);
int64_t packed_block_bytes(const PackArgs& args);

// In dequantize.cpp: the same for the others, whose stream is t, every scale, every element.
void unpack_apart(const PackArgs& args, const uint8_t* codes, float* x);
// The parts of a tensor in any block format: codes, the scales of the tiles, t.
struct Parts {
  float* elements;
  float* scales;
  float* t;
};
// Such a stream of the parts of a tensor; t is in it where the format has one. Every scale has a
// code. Index of the first element without one, or -1.
int64_t pack_parts(const PackArgs& args, const Parts& parts, uint8_t* codes);
void unpack_parts(const PackArgs& args, const uint8_t* codes, const Parts& parts);
// x = codes times the scales of their tiles times t, rounded once; by_line: t has a number for
// every line.
void dequantize_blocks(const PackArgs& args, const float* codes, const float* scale, const float* t,
                       bool by_line, float* x);

// Matrices (batch, rows, cols) times totals. A value is multiplied by the rounded product of two
// totals: one of its row, or of all rows, and one of its column, or of all columns. A null pointer
// stands for ones. A step is 0 where one total serves all rows or columns, else 1; a matrix has
// totals of columns of its own where `column_batch` is not 0.
struct TotalsArgs {
  float* values;
  int64_t batch, rows, cols;
  const float* of_rows;
  const float* of_cols;
  int64_t row_step, col_step, column_batch;
  int threads;
};
void multiply_totals(const TotalsArgs& args);

}  // namespace lpk
