// Slices of an affine format: which lanes look at which elements, and the ends of a slice as
// integers. No order of the threads can change the least of such integers.
#pragma once

#include "common/affine.h"
#include "cuda/product/tiles.h"
#include "scales.h"

namespace lpk::cuda {

// `count` elements of one slice, `step` apart.
struct SlicePiece {
  int64_t slice, first, count, step;
};

// Long runs of neighbours are pieces that a warp reads. Of short runs a lane takes some rows, so
// that neighbouring lanes have neighbouring elements.
struct SlicePieces {
  AxisSizes sizes;
  bool wide;

  static constexpr int64_t kRun = 4096;
  static constexpr int64_t kRows = 64;
  static constexpr int64_t kShort = 32;

  SlicePieces() = default;
  explicit SlicePieces(const AxisSizes& s) : sizes(s) {
    // The only slice of a tensor is one run.
    if (s.length == 1) sizes = {1, 1, s.outer * s.inner};
    wide = sizes.length == 1 || sizes.inner >= kShort;
  }

  LPK_HD int64_t count() const {
    const int64_t lines = sizes.outer * sizes.length;
    if (wide) return lines * ceil_div(sizes.inner, kRun);
    return ceil_div(sizes.outer, kRows) * sizes.length * sizes.inner;
  }
  LPK_HD SlicePiece piece(int64_t index) const {
    if (wide) {
      const int64_t pieces = ceil_div(sizes.inner, kRun);
      const int64_t line = index / pieces;
      const int64_t start = index % pieces * kRun;
      const int64_t left = sizes.inner - start;
      return {line % sizes.length, line * sizes.inner + start, left < kRun ? left : kRun, 1};
    }
    const int64_t columns = sizes.length * sizes.inner;
    const int64_t column = index % columns;
    const int64_t row = index / columns * kRows;
    const int64_t left = sizes.outer - row;
    return {column / sizes.inner, row * columns + column, left < kRows ? left : kRows, columns};
  }
  LPK_HD int64_t slice_of(int64_t index) const {
    return sizes.length == 1 ? 0 : index / sizes.inner % sizes.length;
  }
};

// Integers in the order of doubles.
LPK_HD int64_t sort_key(double x) {
  const int64_t bits = Lanes<double>::bits(x);
  return bits ^ (bits >> 63 & INT64_MAX);
}
LPK_HD double keyed_value(int64_t key) {
  return Lanes<double>::value(key ^ (key >> 63 & INT64_MAX));
}

// The least keys of x and of -x, over finite values x.
struct Ends {
  int64_t low, high;
};
LPK_HD Ends no_ends() { return {sort_key(HUGE_VAL), sort_key(HUGE_VAL)}; }
LPK_HD Ends joined(const Ends& a, const Ends& b) {
  return {a.low < b.low ? a.low : b.low, a.high < b.high ? a.high : b.high};
}

template <class Load>
LPK_HD Ends ends_of(const SlicePiece& piece, int lane, int lanes, const Load& load) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (int64_t i = lane; i < piece.count; i += lanes) {
    const double x = load(piece.first + i * piece.step);
    const bool finite = fabs(x) < HUGE_VAL;
    low = finite && x < low ? x : low;
    high = finite && x > high ? x : high;
  }
  return {sort_key(low), sort_key(-high)};
}

LPK_HD AffineLine<double> line_between(const Ends& ends, const AffineCodes& codes) {
  return affine_line(keyed_value(ends.low), -keyed_value(ends.high), codes);
}

LPK_HD float affine_rounded(double x, const AffineLine<double>& line, const AffineCodes& codes,
                            const Format& integers, Rounding rounding, double threshold) {
  const double u = affine_position<double>(x, line, codes.first, codes.last);
  const double code = round_to_fixed<double>(u, integers, rounding, threshold);
  return canonical_float(affine_value<double>(code, line));
}

}  // namespace lpk::cuda
