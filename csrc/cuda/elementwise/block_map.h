// Blocks of a block format: where they lie, what is known of one, and which lanes take which of its
// elements. Kernels and tests on the host share this.
#pragma once

#include <cstring>

#include "common/blocks.h"
#include "cuda/product/tiles.h"
#include "scales.h"

namespace lpk::cuda {

// Some elements that lie `step` apart. Of a block, `bit` says where its scale lies in the stream of
// codes, in which elements have `bits` bits and blocks are in row-major order of (outer, along the
// axis, inner).
struct BlockSpan {
  int64_t first, count, step;
  int64_t bit;
};

struct BlockShape {
  AxisSizes sizes;
  int64_t size;      // elements of a block
  int64_t per_line;  // blocks along the axis
  int bits;

  BlockShape() = default;
  BlockShape(const AxisSizes& s, int64_t block, int element_bits)
      : sizes(s), size(block), per_line(ceil_div(s.length, block)), bits(element_bits) {}

  LPK_HD int64_t count() const { return sizes.outer * per_line * sizes.inner; }
  LPK_HD BlockSpan block(int64_t index) const {
    const int64_t inner = index % sizes.inner;
    const int64_t along = index / sizes.inner % per_line;
    const int64_t outer = index / sizes.inner / per_line;
    const int64_t start = along * size;
    const int64_t left = sizes.length - start;
    const int64_t count = left < size ? left : size;
    // Whole lines of blocks come before this block, then whole blocks of its line, then its
    // neighbours.
    const int64_t line = sizes.inner * (per_line * kScaleBits + sizes.length * bits);
    const int64_t before = sizes.inner * (size * bits + kScaleBits);
    return {(outer * sizes.length + start) * sizes.inner + inner, count, sizes.inner,
            outer * line + along * before + inner * (count * bits + kScaleBits)};
  }
  // Whether a block is for the lanes of a warp, as its elements are neighbours. Otherwise it is for
  // one lane, because then the same elements of neighbouring blocks are neighbours.
  bool wide() const { return sizes.inner == 1; }

  static constexpr int kScaleBits = 8;
};

// What is known of some elements of a block.
struct Extent {
  double largest;  // of the finite ones
  bool special;    // there is an infinity or NaN
  bool number;     // there is something but NaN
};

LPK_HD Extent joined(const Extent& a, const Extent& b) {
  return {a.largest > b.largest ? a.largest : b.largest, a.special || b.special,
          a.number || b.number};
}

// The extent of one lane's elements; load(i) is element i as a double.
template <class Load>
LPK_HD Extent extent_of(const BlockSpan& span, int lane, int lanes, const Load& load) {
  Extent e{0.0, false, false};
  for (int64_t i = lane; i < span.count; i += lanes) {
    const double a = fabs(load(span.first + i * span.step));
    const bool finite = a < HUGE_VAL;
    e = joined(e, {finite ? a : 0.0, !finite, a == a});
  }
  return e;
}

// Rounds one lane's elements and calls each(index, x, x / 2^X, threshold, rounded x / 2^X, 2^X).
// Both powers are NaN in a block with an infinity or NaN. threshold(i) is what the draw of element
// i asks for.
template <class Load, class Threshold, class Each>
LPK_HD void each_rounded(const BlockSpan& span, int lane, int lanes, const Extent& extent,
                         const BlockElement& element, Rounding rounding, const Load& load,
                         const Threshold& threshold, const Each& each) {
  const int exponent = element.exponent_for(extent.largest);
  const double nan = static_cast<double>(NAN);
  const double down = extent.special ? nan : power_of_two(-exponent);
  const double up = extent.special ? nan : power_of_two(exponent);
  for (int64_t i = lane; i < span.count; i += lanes) {
    const int64_t index = span.first + i * span.step;
    const double x = moderated(load(index));
    const double scaled = x * down, asked = threshold(index);
    each(index, x, scaled, asked, round_to<double>(scaled, element.format, rounding, asked), up);
  }
}

// Makes round(x / 2^X) 2^X of one lane's elements; a block with an infinity or NaN becomes NaN.
template <class Load, class Threshold>
LPK_HD void round_block(const BlockSpan& span, int lane, int lanes, const Extent& extent,
                        const BlockElement& element, Rounding rounding, const Load& load,
                        const Threshold& threshold, float* out) {
  each_rounded(span, lane, lanes, extent, element, rounding, load, threshold,
               [&](int64_t index, double, double, double, double rounded, double up) {
                 out[index] = canonical_float(rounded * up);
               });
}

}  // namespace lpk::cuda
