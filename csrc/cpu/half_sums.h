// Where sums in half precision by the processor's own arithmetic (half_kernel.h) are the sums asked
// for.
#pragma once

#include "certificate.h"
#include "tile.h"

namespace lpk {

// In kernels_avx512fp16.cpp, for a tile that half_sums accepts.
void run_half_tile(const Tile& t, bool rounds_products, bool outer_is_half);

namespace {

inline bool half_precision(const Format& f) {
  return f.kind == Kind::kFloat && f.emin == -14 && f.man_bits == 10 && f.subnormals &&
         f.max == 65504.0 &&
         (f.overflow == Overflow::kInfinity || f.overflow == Overflow::kSaturate);
}

inline bool half_values(const OperandRange& range, const float* x, int64_t count) {
  if (!range.plain || range.width > 11 || range.highest > 16) return false;
  return range.lowest >= -24 || lowest_bit(x, count) >= -24;
}

inline bool half_sums(const Tile& t, const Accumulator& acc, const OperandRange& a,
                      const OperandRange& b) {
  const bool processor_mode =
      acc.rounding == Rounding::kNearestEven || acc.rounding == Rounding::kTowardZero ||
      acc.rounding == Rounding::kTowardPositive || acc.rounding == Rounding::kTowardNegative;
  if (!processor_mode || !half_precision(acc.fmt)) return false;
  if (acc.has_product && !products_stay(acc.product, product_range(a, b)) &&
      !(half_precision(acc.product) && acc.product_rounding == acc.rounding)) {
    return false;
  }
  return half_values(a, t.a, t.rows * t.depth) && half_values(b, t.b, t.lanes * t.depth);
}

}  // namespace
}  // namespace lpk
