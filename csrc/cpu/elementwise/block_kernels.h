// What the drivers of block formats hand to the kernels of one instruction set: plain data.
#pragma once

#include <cstdint>

#include "common/blocks.h"
#include "cpu/drivers/tile.h"

namespace lpk {

// Rows of float32 words, `stride` apart.
struct WordRows {
  const uint32_t* x;
  int64_t stride, rows, cols;
};

// How elements become numbers that are rounded to codes:
enum class Shrinking : int32_t {
  kExact,     // x / (s t), one exact quotient
  kNearest,   // x / (s t), the nearest double: of tables, whose boundaries are not wide
  kProduct,   // x * factor in float32
  kQuotient,  // x / factor in float32, 0 where the factor is
};

// The parameters of a tile, one for each column of a row that is rounded.
struct TileColumns {
  const float* factor;  // of the float32 product; NaN: the exact rule must be taken
  const float* scale;   // s; NaN: every element of the tile becomes NaN
  const float* t;       // of the tensor or the line: a vector of it; or one for each column
  int64_t t_step;       // 0 or 1: from one column to the next

  const float* t_at(int64_t col) const { return t + col * t_step; }
};

// Rounding of words where float32 products are exact, or are rounded as the program rounds them;
// elsewhere a vector is handed to `exact`. kBracketed: products have an error of 2^-23, so that a
// code is known where both ends of the interval around it are rounded to the same code.
struct ScaledWords {
  ElementBlock element;  // format, rounding and draws; its index is that of the first element
  WordRows from;
  float* y;
  int64_t y_stride;
  int64_t index_stride;
  TileColumns tiles;
  bool bracketed;
  bool codes;     // y takes codes, not values
  bool one_zero;  // codes have no -0
  bool streamed;  // y will not be read soon: past the caches
  // Rounds columns col .. col + count of a row.
  void (*exact)(const ScaledWords&, int64_t row, int64_t col, int64_t count, float* y);
  const void* driver;
};

// A span of elements as doubles, and what becomes of it.
struct ScaledSpan {
  int64_t count;
  TileColumns tiles;
  bool has_t;  // t is not always 1
  Shrinking shrinking;
  bool ties_toward_zero;
  bool one_zero;
  bool codes;  // what becomes of it is codes, not values
};

// Errors of codes of a row, by TransformerEngine's operations: of v = q s A / largest, either
// |v - x| or its square.
struct ErrorSpan {
  int64_t count;
  const uint32_t* x;
  const float *codes, *scale, *amax;
  float largest;
  bool squares;
};

struct BlockKernels {
  // The largest |x| of every tile of `wide` columns, as words: NaN above infinity above numbers.
  // `columns` has room for from.cols words and a vector.
  void (*largest)(const WordRows& from, int64_t wide, uint32_t* columns, uint32_t* tiles);
  // The exact scales, and the reciprocals of s t as factors; t is one number a tile. A factor that
  // float32 does not hold is NaN. exact_products: so is a factor below 1, because small products
  // may lose their last bits.
  void (*scales)(const BlockFormat&, double target, const float* t, bool exact_products,
                 const double* largest, int64_t count, float* scale, float* factor);
  // Values of tiles as values of columns; `to` has room for a vector more.
  void (*spread)(const float* of_tiles, int64_t cols, int64_t wide, float* to);
  // float32, float16 or bfloat16 elements as float32 words; `to` has room for a vector more.
  void (*widen_words)(const void* x, ElementType type, int64_t count, uint32_t* to);
  // False, and nothing done, for a format that words do not take.
  bool (*words)(const ScaledWords&);
  // Numbers that are rounded to codes.
  void (*shrink)(const ScaledSpan&, const double* x, double* to);
  // Codes as values, or as themselves with the zeros and NaN of their tiles.
  void (*values)(const ScaledSpan&, const double* codes, float* y);
  void (*codes)(const ScaledSpan&, const double* codes, float* y);
  // Codes times scales times t in float32. Of codes as of these two, the product must be a float32
  // value where t is not 1.
  void (*products)(const ScaledSpan&, const float* codes, float* y);
  // Values of codes of four bits, a multiple of kCodeLanes, by a table of all of them.
  void (*decode_fours)(const float* table, const uint8_t* from, int64_t count, float* x);
  // y = x times the factor of its tile of `wide` neighbours; whether y times `back`, where that is
  // given, is x.
  bool (*multiply)(const float* x, int64_t count, int64_t wide, const float* factor,
                   const float* back, float* y);
  void (*errors)(const ErrorSpan&, float* to);
};

}  // namespace lpk
