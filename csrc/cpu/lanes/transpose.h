// to[c][r] = from[r][c]. Packing and storing transpose a block where source and target have
// different contiguous dimensions. Squares of one vector by one vector, in four-float quarters.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/drivers/tile.h"
#include "lanes.h"

namespace lpk {
namespace {

// Up to kRows rows of up to four columns.
template <class Q>
LPK_HD void transpose_quarter(const float* from, int64_t from_stride, int rows, int cols, float* to,
                              int64_t to_stride) {
  using F = typename Q::F;
  const F x0 = Q::gather(from, from_stride, rows, cols);
  const F x1 = Q::gather(from + from_stride, from_stride, rows - 1, cols);
  const F x2 = Q::gather(from + 2 * from_stride, from_stride, rows - 2, cols);
  const F x3 = Q::gather(from + 3 * from_stride, from_stride, rows - 3, cols);
  const F a = Q::low(x0, x1), b = Q::low(x2, x3);
  const F c = Q::high(x0, x1), d = Q::high(x2, x3);
  Q::put(to, Q::low_pairs(a, b), rows);
  if (cols > 1) Q::put(to + to_stride, Q::high_pairs(a, b), rows);
  if (cols > 2) Q::put(to + 2 * to_stride, Q::low_pairs(c, d), rows);
  if (cols > 3) Q::put(to + 3 * to_stride, Q::high_pairs(c, d), rows);
}

// A block of as many rows as a quarter takes, or of fewer.
template <class I>
LPK_HD void transpose_block(const float* from, int64_t from_stride, int rows, int64_t cols,
                            float* to, int64_t to_stride) {
  if constexpr (I::kTransposes) {
    for (int64_t c = 0; c < cols; c += 4) {
      const int width = static_cast<int>(std::min<int64_t>(4, cols - c));
      transpose_quarter<typename I::Quarter>(from + c, from_stride, rows, width, to + c * to_stride,
                                             to_stride);
    }
  } else {
    for (int64_t c = 0; c < cols; ++c) {
      for (int i = 0; i < rows; ++i) to[c * to_stride + i] = from[i * from_stride + c];
    }
  }
}

// Sixteen columns at a time: a cache line of every source row, and sixteen streams to write.
inline void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t cols, float* to,
                      int64_t to_stride) {
  constexpr int64_t kCols = 16, kRows = std::max(Isa::kTransposes ? 4 : 8, Isa::kWords);
  for (int64_t c = 0; c < cols; c += kCols) {
    const int64_t width = std::min(kCols, cols - c);
    for (int64_t r = 0; r < rows; r += kRows) {
      const int height = static_cast<int>(std::min(kRows, rows - r));
      transpose_block<Isa>(from + r * from_stride + c, from_stride, height, width,
                           to + c * to_stride + r, to_stride);
    }
  }
}

inline void copy_panels(const PanelCopy* copies, int64_t count, const float* from, float* to) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(to + copies[i].to, from + copies[i].from, kPanel * sizeof(float));
}

}  // namespace
}  // namespace lpk
