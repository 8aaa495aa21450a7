// What the operands of one tile prove about its sums, so that float32 arithmetic may stand in for
// exact arithmetic.
//
// Notation: the format has q = man_bits + 1 significant bits and the last place 2^lx of its
// subnormals; every product has at most r significant bits and is a multiple of 2^l. A float32 sum
// rounded again to q bits equals the exact sum rounded once if
//   (A) |s| <= 2^(l + 24): the float32 sum is exact, and rounding keeps it a multiple of 2^l; or
//   (B) r <= q and 2 q <= 23, or q = 12 and r <= 11; or
//   (C) q + r <= 23 and |s| < 2^(lx + 24).
// The reason: a double rounding that goes wrong needs a float32 sum that is a midpoint and an exact
// sum that is not; with the smaller addend on the grid of the larger they are too far apart
// (Figueroa 1995 has the case q = r). If l >= lx no sum is below the last place of the subnormals,
// so their floor never acts and no nonzero sum becomes zero.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../common/accumulate.h"

namespace lpk {
namespace {

// The finite float32 normals and zeros of a packed operand; `plain` is false if there is anything
// else in it.
struct OperandRange {
  bool plain;
  int width;    // significant bits of every element
  int lowest;   // every element is a multiple of 2^lowest
  int highest;  // and smaller than 2^highest
};

inline OperandRange operand_range(const float* x, int64_t count) {
  constexpr uint32_t kMantissa = 0x007fffff;
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t mantissas = 0;
  uint32_t least = kExponent;
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    mantissas |= bits & kMantissa;
    const uint32_t exponent = bits & kExponent;
    const uint32_t counted = (bits & (kMantissa | kExponent)) == 0 ? kExponent : exponent;
    least = counted < least ? counted : least;
    most = exponent > most ? exponent : most;
  }
  if (most == 0 && mantissas == 0) return {true, 1, 0, 0};
  const int width = mantissas == 0 ? 1 : 24 - __builtin_ctz(mantissas);
  return {least != 0 && most != kExponent, width, static_cast<int>(least >> 23) - 127 - (width - 1),
          static_cast<int>(most >> 23) - 126};
}

struct Certificate {
  bool valid;
  bool floor;  // subnormal sums can occur: their floor must be applied
  int bound;   // holds while every sum is below 2^bound
};

inline Certificate certify(const Format& f, const OperandRange& a, const OperandRange& b) {
  constexpr Certificate kNone{false, false, 0};
  // Sums past this need no speed, and a low bound leaves room to scale.
  constexpr int kEnough = 40;
  if (!a.plain || !b.plain || f.kind != Kind::kFloat || f.man_bits < 1 || f.man_bits > 21)
    return kNone;
  const int q = f.man_bits + 1;
  const int r = a.width + b.width;
  const int l = a.lowest + b.lowest;
  const int lx = f.emin - f.man_bits;
  if (r > 24 || l < -126 || lx < -126) return kNone;
  const bool floor = l < lx;
  if (floor && !f.subnormals) return kNone;
  if (!f.subnormals && l < f.emin) return kNone;

  int bound = l + 24;                                                    // (A)
  if (r <= q && (2 * q <= 23 || (q == 12 && r <= 11))) bound = kEnough;  // (B)
  if (q + r <= 23) bound = std::max(bound, lx + 24);                     // (C)
  // Below the largest power of two that every mantissa of the top binade stays under without
  // overflow.
  const int top = std::ilogb(f.max);
  const bool full_binade = f.max == 2 * std::ldexp(1.0, top) - std::ldexp(f.unit, top);
  bound = std::min({bound, kEnough, full_binade ? top + 1 : top});
  // Scaled so that 2^bound is 2, everything must stay a normal float32.
  const int shift = 1 - bound;
  if (a.lowest + shift < -126 || a.highest + shift > 126 || l + shift < -126 || lx + shift < -126)
    return kNone;
  if (f.emin + shift < -126) return kNone;
  return {true, floor, bound};
}

// Whether rounding the products changes none of them.
inline bool products_stay(const Format& product, const OperandRange& a, const OperandRange& b) {
  if (!a.plain || !b.plain || product.kind != Kind::kFloat) return false;
  const int lowest_place = product.subnormals ? product.emin - product.man_bits : product.emin;
  return a.width + b.width <= product.man_bits + 1 && a.lowest + b.lowest >= lowest_place &&
         a.highest + b.highest <= std::ilogb(product.max);
}

}  // namespace
}  // namespace lpk
