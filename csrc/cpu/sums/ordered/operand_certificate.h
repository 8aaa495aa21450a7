// The proof, from a tile's operands, that the sums of its blocks aligned by their operands may be
// made by multiply-adds in float32 or double (operand_lanes.h).
//
// With w = aligned_bits and u = 2^(E - w), the unit of a block: a sum of products that are not
// negative, held as M = 2^(E - w + digits - 1) and some units, has the last place u. A multiply-add
// toward zero adds to it the product cut to units, from the exact product: nothing is rounded
// twice, whatever the width of the operands. There is room for 2^(digits - 1) units; a product has
// less than 2^(w + 2), the running sum less than 2^(w + 1).
//
// The place of a product is the sum of two exponents in bytes, each counted from the least exponent
// of its operand, A or B. An element that does not count has kAbsent, and makes every sum negative.
//
// Absent taps are zeros here. A block of absent taps alone must leave the running sum as it is.
// Cutting and rounding leave it if it has no bits below w places, nor below a place that
// least_exponent asks for.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/sums/certified/operand_range.h"

namespace lpk {
namespace {

constexpr int kAbsent = -64;
constexpr int kExponentSpan = 62;

// Bounds of the exponents that count, of the elements of one operand.
struct ExponentRange {
  int lowest, highest;
};

inline ExponentRange exponent_range(const OperandRange& x, double min_normal) {
  const int emin = std::ilogb(min_normal);
  if (x.zero) return {emin, emin};
  // A merged range may have its width and its lowest place from different elements.
  return {std::max(emin, x.lowest), std::max(emin, x.highest - 1)};
}

struct OperandCertificate {
  bool valid;
  int a_lowest, b_lowest;  // exponents from which bytes count
  int least;               // E is at least that
  double limit;            // holds while running sums are no larger
  // Toward zero, and every unit is a multiple of the format's last place: so are all sums, and one
  // below the smallest normal number is not cut.
  bool plain;
};

// in: the precision of the sums. state: the range of the sums that the tile goes on from.
inline OperandCertificate certify_operands(const Precision& in, const Tile& t,
                                           const Accumulator& acc, const OperandRange& a,
                                           const OperandRange& b, const OperandRange& state) {
  constexpr OperandCertificate kNone{};
  const Format& f = acc.fmt;
  const bool mode = acc.rounding == Rounding::kTowardZero || acc.rounding == Rounding::kNearestEven;
  if (acc.rounds_every_step() || !mode || !f.subnormals || f.man_bits < 1 ||
      f.man_bits > in.digits - 2)
    return kNone;
  if (!a.plain || !b.plain || !state.plain) return kNone;
  const int w = acc.aligned_bits;
  const int last = f.emin - f.man_bits;
  const bool has_least = acc.least_binade > 0;
  const int least = has_least ? std::ilogb(acc.least_binade) : -1000;
  if (f.man_bits > w || (has_least && least - w > last)) return kNone;

  const double a_min = t.exchanged ? acc.right_min_normal : acc.left_min_normal;
  const double b_min = t.exchanged ? acc.left_min_normal : acc.right_min_normal;
  const ExponentRange ea = exponent_range(a, a_min), eb = exponent_range(b, b_min);
  if (ea.highest - ea.lowest > kExponentSpan || eb.highest - eb.lowest > kExponentSpan)
    return kNone;
  const double units = std::ldexp(acc.block, w + 2) + std::ldexp(1.0, w + 1);
  if (units > std::ldexp(1.0, in.digits - 1)) return kNone;

  // M and its last place must be the processor's own for the least E, and for the largest there
  // must be room to round: digits - 1 binades above the sum.
  const int lowest = std::max(in.emin, in.emin - in.digits + 1 + w);
  const int highest = (in.digits == 24 ? 127 : 1023) - 2 * in.digits + w;
  if (ea.lowest + eb.lowest < lowest || std::max(ea.highest + eb.highest, least) > highest)
    return kNone;
  // A running sum counts with the format's least exponent or more, which float32 must hold as well.
  if (f.emin < in.emin || f.emin > highest) return kNone;
  // To nearest, half a unit of the format's last place is looked at.
  if (acc.rounding == Rounding::kNearestEven && last - 1 < in.emin) return kNone;
  const int bound = std::min(overflow_exponent(f), highest);
  if (state.highest > bound) return kNone;
  const double limit = std::min(f.max, std::ldexp(1.0, bound));
  OperandCertificate c{true, ea.lowest, eb.lowest, std::max(least, lowest), limit, false};
  c.plain =
      acc.rounding == Rounding::kTowardZero && std::max(ea.lowest + eb.lowest, least) - w >= last;
  // Then only running sums have places below emin, and they are whole there too.
  if (c.plain) c.least = std::max(c.least, f.emin);
  return c;
}

}  // namespace
}  // namespace lpk
