// to[c][r] = from[r][c]: what packing and storing do to a block whose two sides disagree on which
// dimension is contiguous. Squares of one vector by one vector, in four-float quarters.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/drivers/tile.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace lpk {
namespace {

#if defined(__AVX2__)

#if defined(__AVX512F__)
// Four floats of each of up to 16 rows: 128-bit lane j of vector i comes from row 4 j + i.
struct QuarterRows {
  using F = __m512;
  static constexpr int kRows = 16;
  LPK_HD static __m128 part(const float* p, int cols) {
    return cols == 4 ? _mm_loadu_ps(p)
                     : _mm_maskz_loadu_ps(static_cast<__mmask8>((1 << cols) - 1), p);
  }
  LPK_HD static F gather(const float* from, int64_t stride, int rows, int cols) {
    if (rows == kRows && cols == 4) {
      F x = _mm512_castps128_ps512(_mm_loadu_ps(from));
      x = _mm512_insertf32x4(x, _mm_loadu_ps(from + 4 * stride), 1);
      x = _mm512_insertf32x4(x, _mm_loadu_ps(from + 8 * stride), 2);
      return _mm512_insertf32x4(x, _mm_loadu_ps(from + 12 * stride), 3);
    }
    F x = _mm512_setzero_ps();
    if (rows > 0) x = _mm512_insertf32x4(x, part(from, cols), 0);
    if (rows > 4) x = _mm512_insertf32x4(x, part(from + 4 * stride, cols), 1);
    if (rows > 8) x = _mm512_insertf32x4(x, part(from + 8 * stride, cols), 2);
    if (rows > 12) x = _mm512_insertf32x4(x, part(from + 12 * stride, cols), 3);
    return x;
  }
  LPK_HD static F low(F a, F b) { return _mm512_unpacklo_ps(a, b); }
  LPK_HD static F high(F a, F b) { return _mm512_unpackhi_ps(a, b); }
  LPK_HD static F low_pairs(F a, F b) { return _mm512_shuffle_ps(a, b, 0x44); }
  LPK_HD static F high_pairs(F a, F b) { return _mm512_shuffle_ps(a, b, 0xee); }
  LPK_HD static void put(float* to, F x, int rows) {
    if (rows == kRows) return _mm512_storeu_ps(to, x);
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1 << rows) - 1), x);
  }
};
#else
struct QuarterRows {
  using F = __m256;
  static constexpr int kRows = 8;
  LPK_HD static __m256i mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  LPK_HD static __m128 part(const float* p, int cols) {
    return cols == 4 ? _mm_loadu_ps(p) : _mm_maskload_ps(p, _mm256_castsi256_si128(mask(cols)));
  }
  LPK_HD static F gather(const float* from, int64_t stride, int rows, int cols) {
    F x = _mm256_setzero_ps();
    if (rows > 0) x = _mm256_insertf128_ps(x, part(from, cols), 0);
    if (rows > 4) x = _mm256_insertf128_ps(x, part(from + 4 * stride, cols), 1);
    return x;
  }
  LPK_HD static F low(F a, F b) { return _mm256_unpacklo_ps(a, b); }
  LPK_HD static F high(F a, F b) { return _mm256_unpackhi_ps(a, b); }
  LPK_HD static F low_pairs(F a, F b) { return _mm256_shuffle_ps(a, b, 0x44); }
  LPK_HD static F high_pairs(F a, F b) { return _mm256_shuffle_ps(a, b, 0xee); }
  LPK_HD static void put(float* to, F x, int rows) {
    if (rows == kRows) return _mm256_storeu_ps(to, x);
    _mm256_maskstore_ps(to, mask(rows), x);
  }
};
#endif

// Up to kRows rows of up to four columns.
LPK_HD void transpose_quarter(const float* from, int64_t from_stride, int rows, int cols, float* to,
                              int64_t to_stride) {
  using Q = QuarterRows;
  const Q::F x0 = Q::gather(from, from_stride, rows, cols);
  const Q::F x1 = Q::gather(from + from_stride, from_stride, rows - 1, cols);
  const Q::F x2 = Q::gather(from + 2 * from_stride, from_stride, rows - 2, cols);
  const Q::F x3 = Q::gather(from + 3 * from_stride, from_stride, rows - 3, cols);
  const Q::F a = Q::low(x0, x1), b = Q::low(x2, x3);
  const Q::F c = Q::high(x0, x1), d = Q::high(x2, x3);
  Q::put(to, Q::low_pairs(a, b), rows);
  if (cols > 1) Q::put(to + to_stride, Q::high_pairs(a, b), rows);
  if (cols > 2) Q::put(to + 2 * to_stride, Q::low_pairs(c, d), rows);
  if (cols > 3) Q::put(to + 3 * to_stride, Q::high_pairs(c, d), rows);
}

#endif

// Sixteen columns at a time: a cache line of every source row, and sixteen streams to write.
inline void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t cols, float* to,
                      int64_t to_stride) {
  constexpr int64_t kCols = 16;
#if defined(__AVX2__)
  constexpr int kRows = QuarterRows::kRows;
#else
  constexpr int kRows = 8;
#endif
  for (int64_t c0 = 0; c0 < cols; c0 += kCols) {
    const int64_t end = std::min(c0 + kCols, cols);
    for (int64_t r = 0; r < rows; r += kRows) {
      const int height = static_cast<int>(std::min<int64_t>(kRows, rows - r));
      const float* source = from + r * from_stride;
      float* target = to + r;
#if defined(__AVX2__)
      for (int64_t c = c0; c < end; c += 4) {
        const int width = static_cast<int>(std::min<int64_t>(4, end - c));
        transpose_quarter(source + c, from_stride, height, width, target + c * to_stride,
                          to_stride);
      }
#else
      for (int64_t c = c0; c < end; ++c) {
        for (int i = 0; i < height; ++i) target[c * to_stride + i] = source[i * from_stride + c];
      }
#endif
    }
  }
}

inline void copy_panels(const PanelCopy* copies, int64_t count, const float* from, float* to) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(to + copies[i].to, from + copies[i].from, kPanel * sizeof(float));
}

}  // namespace
}  // namespace lpk
