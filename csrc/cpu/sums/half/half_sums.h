// The conditions under which sums in half precision by the processor's own arithmetic
// (half_kernel.h) are the sums that an accumulator asks for.
//
// A product p of at most 11 bits is rounded to q = man_bits + 1 bits, with K = 2^(11 - q), so that
// K p is exact:
//   t = fl(K p - p),  h = K p - t
// For q <= 5 as in certified_rules.h, 2 q <= 9. For q of 6 and more the grid of t is too fine for
// p just above a power of two; with K a + 2^floor(log2 |a|) for K a it is not, for operands of at
// most 4 bits: all of them are compared (tests/backends/cpu/test_half_products.py).
//
// The operands are scaled so that 2^-24, half precision's last place, is the last place of the
// products or, if this is coarser, of the format's subnormals. Then K p is exact but for products
// finer than 2^-24 / K, and t is rounded on the grid of the format: in the subnormals the two are
// the same. For finer products, or factors (K - 1) a of more than 11 bits, with M = fl(K p):
//   h = M - fl(M - p)
// M is K p from the smallest normal number on; below, it is a multiple of 2^-24, and so is M - p
// once rounded. If p is a tie, K p is an even multiple, as K > 2: ties go to even.
#pragma once

#include "cpu/drivers/tile.h"
#include "cpu/sums/certified/operand_range.h"

namespace lpk {

enum class HalfProducts { kFused, kHalf, kSplit, kFloor };

struct HalfSums {
  bool valid;
  HalfProducts products;
  bool saturates;    // products may
  int left, right;   // A is taken times 2^left, B times 2^right
  int factor;        // log2 K
  bool adds_binade;  // 2^floor(log2 |a|) to K a
  int scale() const { return left + right; }
};

// In kernels_avx512fp16.cpp or kernels_neonfp16.cpp, for a tile that half_sums accepts.
void run_half_tile(const Tile& t, const HalfSums& sums, bool outer_is_half);

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

inline HalfSums split_half_products(const Accumulator& acc, const OperandRange& a,
                                    const OperandRange& b) {
  constexpr HalfSums kNone{};
  const Format& f = acc.product;
  const AddendRange p = product_range(a, b);
  if (!p.plain || p.width > 11 || f.kind != Kind::kFloat || !f.subnormals || f.man_bits < 1)
    return kNone;
  // Sums that are -0 can come of products that are, and from differences rounded down.
  if (acc.product_rounding != Rounding::kNearestEven || acc.rounding == Rounding::kTowardNegative)
    return kNone;
  const int q = f.man_bits + 1;
  HalfSums sums{};
  sums.factor = 11 - q;
  sums.adds_binade = q > 5;
  if (sums.adds_binade && (a.width > 4 || b.width > 4 || q > 7)) return kNone;
  sums.saturates = p.highest > std::ilogb(f.max);
  if (sums.saturates && f.overflow != Overflow::kSaturate) return kNone;

  const int last = f.emin - f.man_bits;
  const int scale = -24 - std::max(p.lowest, last);
  sums.left = std::max(scale, -24 - a.lowest);
  sums.right = scale - sums.left;
  // The last place of K a + 2^floor(log2 |a|) may be that of a.
  const int lowest_wide = p.lowest + (sums.adds_binade ? 0 : sums.factor);
  const bool split = a.width <= q && lowest_wide >= last;
  if (!split && sums.adds_binade) return kNone;
  sums.products = split ? HalfProducts::kSplit : HalfProducts::kFloor;
  // K a + a and (K a + a) b are below 2^(12 - q) of them; 2^-scale, and max 2^scale, half values.
  const int wide = sums.factor + 1;
  sums.valid = scale >= -15 && scale <= 24 && b.lowest + sums.right >= -24 &&
               b.highest + sums.right <= 16 && a.highest + sums.left + wide <= 16 &&
               p.highest + scale + wide <= 16;
  return sums;
}

inline HalfSums half_sums(const Tile& t, const Accumulator& acc, const OperandRange& a,
                          const OperandRange& b) {
  constexpr HalfSums kNone{};
  const bool processor_mode =
      acc.rounding == Rounding::kNearestEven || acc.rounding == Rounding::kTowardZero ||
      acc.rounding == Rounding::kTowardPositive || acc.rounding == Rounding::kTowardNegative;
  if (!processor_mode || !half_precision(acc.fmt)) return kNone;
  HalfSums sums{};
  if (acc.has_product && !products_stay(acc.product, product_range(a, b))) {
    if (!half_precision(acc.product) || acc.product_rounding != acc.rounding)
      return split_half_products(acc, a, b);
    sums.products = HalfProducts::kHalf;
    sums.saturates = acc.product.overflow == Overflow::kSaturate;
  }
  sums.valid = half_values(a, t.a, t.rows * t.depth) && half_values(b, t.b, t.lanes * t.depth);
  return sums;
}

}  // namespace
}  // namespace lpk
