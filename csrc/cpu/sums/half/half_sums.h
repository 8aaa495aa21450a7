// The conditions under which sums in half precision by the processor's own arithmetic
// (half_kernel.h) are the sums that an accumulator asks for.
#pragma once

#include "cpu/drivers/tile.h"
#include "cpu/sums/certified/operand_range.h"

namespace lpk {

struct HalfSums {
  bool valid;
  bool rounds_products;
  bool saturates;      // products do
  bool outer_is_half;  // the sums of chunks are made so, too
};

// In csrc/cpu/isa/half.cpp, for a tile that half_sums accepts.
void run_half_tile(const Tile& t, const HalfSums& sums);

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

inline HalfSums half_sums(const Tile& t, const Accumulator& acc, const OperandRange& a,
                          const OperandRange& b) {
  constexpr HalfSums kNone{};
  const bool processor_mode =
      acc.rounding == Rounding::kNearestEven || acc.rounding == Rounding::kTowardZero ||
      acc.rounding == Rounding::kTowardPositive || acc.rounding == Rounding::kTowardNegative;
  if (!processor_mode || !half_precision(acc.fmt)) return kNone;
  HalfSums sums{};
  if (!products_stay(acc, a, b)) {
    if (!half_precision(acc.product) || acc.product_rounding != acc.rounding) return kNone;
    sums.rounds_products = true;
    sums.saturates = acc.product.overflow == Overflow::kSaturate;
  }
  sums.outer_is_half = half_precision(acc.outer) && acc.outer_rounding == acc.rounding;
  sums.valid = half_values(a, t.a, t.rows * t.depth) && half_values(b, t.b, t.lanes * t.depth);
  return sums;
}

}  // namespace
}  // namespace lpk
