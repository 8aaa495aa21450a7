// What the operands of one tile prove about its sums, so that float32 arithmetic may stand in for
// exact arithmetic.
//
// Notation: the format has q = man_bits + 1 significant bits and the last place 2^lx of its
// subnormals; every product has at most r significant bits and is a multiple of 2^l. A float32 sum
// rounded again to q bits equals the exact sum rounded once if
//   (A) |s| <= 2^(l + 24): the float32 sum is exact, and rounding keeps it a multiple of 2^l; or
//   (B) r <= q and 2 q <= 23, or q = 12 and r <= 11; or
//   (C) q + r <= 23 and |s| < 2^(lx + 24).
// For sums in double 53 takes the place of 24, and (B) is r <= q and 2 q <= 52.
// The reason: a double rounding that goes wrong needs a float32 sum that is a midpoint and an exact
// sum that is not; with the smaller addend on the grid of the larger they are too far apart
// (Figueroa 1995 has the case q = r). If l >= lx no sum is below the last place of the subnormals,
// so their floor never acts and no nonzero sum becomes zero. A block of k goes on from sums that
// earlier operands made: for (A), and without subnormals, l is that of whichever is finer.
//
// Where none of the three holds, the float32 sum is made odd (from its two directed roundings): it
// has at least two bits more than q, so that one more rounding gives the bits of the exact sum
// (Boldo and Melquiond 2008), for operands of any width. With one bit more than q the two directed
// roundings themselves tell the nearest (certified_rules.h), but not at the floor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/accumulate.h"
#include "cpu/drivers/tile.h"

namespace lpk {
namespace {

// With kFinite infinities and NaN count as zeros.
template <bool kFinite = false>
inline OperandRange operand_range(const float* x, int64_t count) {
  constexpr uint32_t kMantissa = 0x007fffff;
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t mantissas = 0;
  uint32_t least = kExponent;
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    // By a mask: compilers make no vectors of a choice here.
    if (kFinite) bits &= 0u - static_cast<uint32_t>((bits & kExponent) != kExponent);
    mantissas |= bits & kMantissa;
    const uint32_t exponent = bits & kExponent;
    const uint32_t counted = (bits & (kMantissa | kExponent)) == 0 ? kExponent : exponent;
    least = counted < least ? counted : least;
    most = exponent > most ? exponent : most;
  }
  if (most == 0 && mantissas == 0) return {true, true, 1, 0, 0};
  const int width = mantissas == 0 ? 1 : 24 - __builtin_ctz(mantissas);
  return {least != 0 && most != kExponent, false, width,
          static_cast<int>(least >> 23) - 127 - (width - 1), static_cast<int>(most >> 23) - 126};
}

inline OperandRange range_of_a(const Tile& t) {
  return t.a_range != nullptr ? *t.a_range : operand_range(t.a, t.a_floats());
}

inline const OperandRange& range_of_b(const Tile& t) {
  PackedFacts& facts = *t.b_facts;
  if (!facts.ranged) facts.range = operand_range(t.b, t.lanes * t.depth);
  facts.ranged = true;
  return facts.range;
}

// The range of all the elements of two operands.
inline OperandRange merged(const OperandRange& a, const OperandRange& b) {
  if (a.zero) return {a.plain && b.plain, b.zero, b.width, b.lowest, b.highest};
  if (b.zero) return {a.plain && b.plain, false, a.width, a.lowest, a.highest};
  return {a.plain && b.plain, false, std::max(a.width, b.width), std::min(a.lowest, b.lowest),
          std::max(a.highest, b.highest)};
}

// The largest l such that every element is a multiple of 2^l, for plain elements: `lowest` above
// takes the widest and the smallest for one and the same.
inline int lowest_bit(const float* x, int64_t count) {
  constexpr uint32_t kInfinity = 0x7f800000;
  uint32_t least = kInfinity;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(x[i]);
    uint32_t bits;
    std::memcpy(&bits, &magnitude, sizeof bits);
    // Without its last bit; a power of two has none to lose.
    const uint32_t rest_bits = (bits & 0x007fffff) != 0 ? bits & (bits - 1) : 0;
    float rest;
    std::memcpy(&rest, &rest_bits, sizeof rest);
    const float last = magnitude - rest;
    uint32_t last_bits;
    std::memcpy(&last_bits, &last, sizeof last_bits);
    last_bits = last_bits == 0 ? kInfinity : last_bits;
    least = last_bits < least ? last_bits : least;
  }
  // It may be subnormal.
  float lowest;
  std::memcpy(&lowest, &least, sizeof lowest);
  return least == kInfinity ? 0 : std::ilogb(lowest);
}

// What is known about the addends of a sum, which are products of the operands, or rounded
// products.
struct AddendRange {
  bool plain;
  int width;
  int lowest;
  int highest;
};

inline AddendRange product_range(const OperandRange& a, const OperandRange& b) {
  return {a.plain && b.plain, a.width + b.width, a.lowest + b.lowest, a.highest + b.highest};
}

// Products exact in float32, normal and finite.
inline bool exact_products(const AddendRange& p) {
  return p.plain && p.width <= 24 && p.lowest >= -126 && p.highest <= 127;
}

// The precision in which sums are computed: its significant digits, and the exponent of its
// smallest normal number.
struct Precision {
  int digits;
  int emin;
  // Sums beyond the power of two with this exponent need no speed; a low bound leaves room to
  // scale.
  int enough;
};
constexpr Precision kSinglePrecision{24, -126, 40};
constexpr Precision kDoublePrecision{53, -1022, 130};

// (B): sums of such addends may be rounded again wherever they lie.
inline bool rounds_twice_safely(const Precision& in, int width, int q) {
  const bool one_digit_short = in.digits == 24 && q == 12 && width <= 11;
  return width <= q && (2 * q < in.digits || one_digit_short);
}

// The product format leaves every product as it is.
inline bool products_stay(const Format& product, const AddendRange& p) {
  if (!p.plain || product.kind != Kind::kFloat) return false;
  const int lowest_place = product.subnormals ? product.emin - product.man_bits : product.emin;
  return p.width <= product.man_bits + 1 && p.lowest >= lowest_place &&
         p.highest <= std::ilogb(product.max);
}

// The range of the addends once the accumulator has rounded the products, if it does.
inline AddendRange addend_range(const Accumulator& acc, const OperandRange& a,
                                const OperandRange& b) {
  AddendRange p = product_range(a, b);
  if (!acc.has_product || !p.plain || products_stay(acc.product, p)) return p;
  const Format& f = acc.product;
  if (f.kind != Kind::kFloat) return {false, 0, 0, 0};
  const int top = std::ilogb(f.max);
  int lowest = std::max(p.lowest, f.subnormals ? f.emin - f.man_bits : f.emin);
  // Products that saturate become max, whose last place may be finer than theirs.
  if (p.highest > top) lowest = std::min(lowest, top - f.man_bits);
  return {true, f.man_bits + 1, lowest, std::min(p.highest + 1, top + 1)};
}

// nearest_even: the kernels may add in float32 and round again, whatever the sums.
inline bool plain_sums(const Accumulator& acc, const OperandRange& a, const OperandRange& b) {
  if (acc.rounding != Rounding::kNearestEven || !acc.fmt.subnormals) return false;
  if (!exact_products(product_range(a, b))) return false;
  return rounds_twice_safely(kSinglePrecision, addend_range(acc, a, b).width, acc.fmt.man_bits + 1);
}

// The exponent of the largest power of two that sums may stay below without overflow.
inline int overflow_exponent(const Format& f) {
  const int top = std::ilogb(f.max);
  const bool full_binade = f.max == 2 * std::ldexp(1.0, top) - std::ldexp(f.unit, top);
  return full_binade ? top + 1 : top;
}

// Whether the mode is nearest_even to one digit less than the sums have.
inline bool one_digit_less(const Precision& in, const Format& f) {
  return f.man_bits == in.digits - 2;
}

struct Certificate {
  bool valid;
  bool odd;        // float32 sums must be made odd, or the nearest found from their bracket
  bool floor;      // subnormal sums can occur: their floor must be applied
  int bound;       // holds while every sum is below 2^bound
  bool overflows;  // only the format's overflow lies there, and rounding holds beyond it
  bool reached;    // they may not be: to be watched
};

// Bits that sums of `terms` addends, on from `state`, cannot have: with u >= the relative error of
// a rounding, |sum| <= (|state| + terms |addend|) (1 + u)^terms, where u = 2^-man_bits holds of
// every mode. Where the floor acts a sum of no more than min_normal may take the place of `state`.
inline int highest_sum(const Format& f, const AddendRange& p, const OperandRange& state,
                       int64_t terms) {
  int64_t bits = 1;
  while (int64_t{1} << bits < terms) ++bits;
  bits += p.highest;
  if (!state.zero) bits = std::max<int64_t>(bits, state.highest);
  // log2(1 + u) < 1.5 u
  const int64_t growth = (3 * terms >> (f.man_bits + 1)) + 1;
  return static_cast<int>(
      std::min<int64_t>(std::max<int64_t>(bits, f.emin + 1) + 1 + growth, 1 << 20));
}

// For a sum of `terms` such addends into f, on from `state`: the sums of the products before may be
// finer than these. `factor` is the operand that is scaled. Computed `in` float32 or double.
// The directed modes, and nearest_away and stochastic of truncated sums, compose in any case
// (certified_truncated.h); only their range must be certified.
inline Certificate certify(const Precision& in, const Format& f, Rounding mode, int random_bits,
                           const AddendRange& p, const OperandRange& state,
                           const OperandRange& factor, int64_t terms) {
  constexpr Certificate kNone{false, false, false, 0, false, false};
  if (!p.plain || !state.plain || f.kind != Kind::kFloat) return kNone;
  const bool brackets = mode == Rounding::kNearestEven && one_digit_less(in, f);
  if (f.man_bits < 1 || (f.man_bits > in.digits - 3 && !brackets)) return kNone;
  const int q = f.man_bits + 1;
  const int lx = f.emin - f.man_bits;
  // Every sum is a multiple of 2 to this power.
  const int finest = state.zero ? p.lowest : std::min(p.lowest, state.lowest);
  const bool floor = p.lowest < lx;
  if (floor && brackets) return kNone;
  if (!f.subnormals && finest < f.emin) return kNone;

  int bound = in.enough;
  bool odd = false;
  if (mode == Rounding::kNearestEven) {
    if (brackets || p.width > in.digits) {
      odd = true;
    } else if (!rounds_twice_safely(in, p.width, q)) {
      int safe = finest + in.digits;                                       // (A)
      if (q + p.width < in.digits) safe = std::max(safe, lx + in.digits);  // (C)
      // Long sums need room above the largest product.
      odd = safe < std::min(p.highest + 12, in.enough);
      if (!odd) bound = safe;
    }
  } else if (mode != Rounding::kToOdd) {
    if (floor) return kNone;
    if (mode == Rounding::kStochastic && random_bits > in.digits - 2 - f.man_bits) return kNone;
  } else {
    return kNone;
  }
  // Scaled so that 2^bound is 2, what the rules compute with must stay normal: sums, and with the
  // floor the smallest binade. Of sums made odd only two bits below the last place matter.
  int least = finest;
  if (floor) least = odd ? f.emin : std::min({finest, lx, f.emin});
  least = std::min(least, factor.lowest);
  const int overflow = overflow_exponent(f);
  const int scalable = least + 1 - in.emin;
  const bool overflows = overflow < std::min({bound, in.enough, scalable});
  bound = std::min({bound, in.enough, overflow, scalable});
  // A bound that single products exceed would only be found broken, so there is no certificate.
  // 2^(1 - bound) must be a number of the precision, and so must a scaled operand.
  if (bound < std::max(p.highest, in.emin) || factor.highest + 1 - bound > -in.emin) return kNone;
  return {true, odd, floor, bound, overflows, highest_sum(f, p, state, terms) > bound};
}

}  // namespace
}  // namespace lpk
