// What operands prove about their sums, so that float32 or double arithmetic may stand in for exact
// arithmetic. Host and device; csrc/cpu and csrc/cuda choose their tiers by it.
//
// A format has q = man_bits + 1 significant bits, and its subnormals have the last place 2^lx. The
// addends of a sum are products, or products rounded to a product format: they have at most r
// significant bits, are multiples of 2^l and lie below 2^h. A sum s is computed to nearest in P
// bits, which is 24 or 53, and then rounded to q bits. This is the exact sum rounded once if
//   (A) |s| <= 2^(l + P): the sum in P bits is exact, and rounding keeps it a multiple of 2^l; or
//   (B) r <= q and 2 q <= P - 1, or P = 24, q = 12 and r <= 11; or
//   (C) q + r <= P - 1 and |s| < 2^(lx + P).
// The reason: a double rounding that goes wrong needs a sum in P bits that is a midpoint, and an
// exact sum that is not. With the smaller addend on the grid of the larger one, the two are too far
// apart (Figueroa 1995 has the case q = r). Sums may go on from a state, the sums of earlier
// products. In (A) the state, too, must then be a multiple of 2^l.
//
// If l >= lx, no sum is finer than the subnormals: their floor never acts, and no nonzero sum
// becomes zero. Sums that start from +0 are then never -0, except in toward_negative.
//
// Where none of the three holds, the sum in P bits is made odd, from its two directed roundings. It
// has at least two bits more than q, so one more rounding gives the bits of the exact sum (Boldo
// and Melquiond 2008), for operands of any width. With one bit more than q the directed roundings
// themselves tell the nearest (csrc/cpu/sums/certified/certified_rules.h), but not at the floor.
// Truncation, the other directed modes, nearest_away and stochastic compose with a truncated sum in
// any case (csrc/cpu/sums/certified/certified_truncated.h), so only their range must be certified.
//
// How far can sums of n addends go? Let 2^H bound the state and the addends. While n <= 2^q, n 2^H
// is a value of the format, and rounding is monotone: no sum goes beyond n 2^H, in any mode. To
// nearest and toward zero none goes beyond 2^q 2^H either, because an addend below 2^H is less than
// half a place there. In the other modes each further step takes a factor of at most 1 + 2^-m.
//
// lpkernels/backends/triton/certified/certificate.py has (A) to (C) for Triton;
// tests/backends/triton/test_certificate.py compares them.
#pragma once

#include "accumulate.h"

namespace lpk {

LPK_HD int least_of(int a, int b) { return a < b ? a : b; }
LPK_HD int most_of(int a, int b) { return a > b ? a : b; }

// ceil(log2 n), n >= 1, at most 62.
LPK_HD int log2_above(int64_t n) {
  int bits = 0;
  while (bits < 62 && (int64_t{1} << bits) < n) ++bits;
  return bits;
}

// What is known of all elements of an operand.
struct OperandRange {
  bool plain;   // no element is NaN, infinite or subnormal; nothing below holds otherwise
  bool zero;    // no element but zeros, which are multiples of anything
  int width;    // significant bits of every element
  int lowest;   // every element is a multiple of 2^lowest
  int highest;  // and smaller than 2^highest
};
LPK_HD OperandRange range_of_zeros() { return {true, true, 1, 0, 0}; }

// What is known of the addends of a sum: products of the operands, or rounded products.
struct AddendRange {
  bool plain;
  int width;
  int lowest;
  int highest;
};

LPK_HD AddendRange product_range(const OperandRange& a, const OperandRange& b) {
  return {a.plain && b.plain, a.width + b.width, a.lowest + b.lowest, a.highest + b.highest};
}

// The last place of a format's subnormals; without subnormals, the smallest normal value. Every
// value is a multiple of 2 to this power.
LPK_HD int lowest_place(const Format& f) { return f.subnormals ? f.emin - f.man_bits : f.emin; }

// Whether the product format leaves every product as it is.
LPK_HD bool products_stay(const Format& product, const AddendRange& p) {
  if (!p.plain || product.kind != Kind::kFloat) return false;
  return p.width <= product.man_bits + 1 && p.lowest >= lowest_place(product) &&
         p.highest <= log2_of(product.max);
}

// Whether the accumulator leaves all products as they are.
LPK_HD bool products_stay(const Accumulator& acc, const OperandRange& a, const OperandRange& b) {
  return !acc.has_product || products_stay(acc.product, product_range(a, b));
}

// The range of the addends once the accumulator has rounded the products, if it does.
LPK_HD AddendRange addend_range(const Accumulator& acc, const AddendRange& p) {
  if (!acc.has_product || !p.plain || products_stay(acc.product, p)) return p;
  const Format& f = acc.product;
  if (f.kind != Kind::kFloat) return {false, 0, 0, 0};
  const int top = log2_of(f.max);
  int lowest = most_of(p.lowest, lowest_place(f));
  // Products that saturate become max, whose last place may be finer than theirs.
  if (p.highest > top) lowest = least_of(lowest, top - f.man_bits);
  return {true, f.man_bits + 1, lowest, least_of(p.highest + 1, top + 1)};
}

// The arithmetic in which sums are computed, and what a machine makes of it.
struct Precision {
  int digits;
  int emin;  // the exponent of its smallest normal number
  // Sums beyond 2^enough need no speed: few sums in float32 reach so far, and none in double.
  int enough;
  // How many binades above the largest product the bound of (A) or (C) must leave to sums. With
  // fewer, long sums would often pass the bound, and to make sums odd takes less time.
  int spare;
};
LPK_HD constexpr Precision single_precision() { return {24, -126, 40, 12}; }
LPK_HD constexpr Precision double_precision(int spare = 12) { return {53, -1022, 130, spare}; }

// (B): sums of such addends may be rounded again wherever they lie.
LPK_HD bool rounds_twice_safely(const Precision& in, int width, int q) {
  const bool one_digit_short = in.digits == 24 && q == 12 && width <= 11;
  return width <= q && (2 * q < in.digits || one_digit_short);
}

// The exponent of a bound that no sum reaches.
constexpr int kNoBound = 4096;

// Sums below 2 to this power may be rounded again, to nearest_even. They are multiples of 2^lowest
// of addends with `width` bits.
LPK_HD int nearest_bound(const Precision& in, const Format& f, int width, int lowest) {
  const int q = f.man_bits + 1;
  if (rounds_twice_safely(in, width, q)) return kNoBound;
  const int exact = lowest + in.digits;
  return q + width < in.digits ? most_of(exact, f.emin - f.man_bits + in.digits) : exact;
}

// The exponent of the largest power of two that sums may stay below without overflow.
LPK_HD int overflow_exponent(const Format& f) {
  const int top = log2_of(f.max);
  const bool full_binade = f.max == 2 * power_of_two(top) - power_of_two(top) * f.unit;
  return full_binade ? top + 1 : top;
}

// Whether a format has one digit less than sums are computed with.
LPK_HD bool one_digit_less(const Precision& in, const Format& f) {
  return f.man_bits == in.digits - 2;
}

// No sum of `terms` addends that starts from `state` exceeds 2 to this power, rounded or not.
LPK_HD int highest_sum(const Format& f, Rounding mode, const AddendRange& p,
                       const OperandRange& state, int64_t terms) {
  const int q = f.man_bits + 1;
  const int larger = state.zero ? p.highest : most_of(p.highest, state.highest);
  const int bits = log2_above(state.zero ? terms : terms + 1);
  const bool stays = mode == Rounding::kNearestEven || mode == Rounding::kNearestAway ||
                     mode == Rounding::kTowardZero;
  if (stays) return larger + least_of(bits, q + 1);
  // An addend below the floor may become the last place.
  const int raised = most_of(larger, f.emin - f.man_bits);
  if (bits <= q) return raised + bits;
  // log2(1 + 2^-m) < 1.5 2^-m. Sums of more than 2^20 binades are as good as any.
  const int64_t growth = (3 * terms >> (f.man_bits + 1)) + 1;
  return raised + bits + (growth < 1 << 20 ? static_cast<int>(growth) : 1 << 20);
}

struct Certificate {
  bool valid;
  bool odd;         // sums must be made odd, or the nearest found from their bracket
  bool floor;       // subnormal sums can occur: their floor must be applied
  bool everywhere;  // (B): it takes no bound for sums to be rounded again
  int bound;        // holds while every sum is below 2^bound
  bool overflows;   // only the format's overflow lies there, and rounding holds beyond it
  bool reached;     // sums may not be below 2^bound: they are to be watched
};

// For a sum of `terms` such addends into f. It goes on from `state`, sums of earlier products that
// may be finer than the addends. `factor` is the operand that is scaled by 2^(1 - bound).
LPK_HD Certificate certify(const Precision& in, const Format& f, Rounding mode, int random_bits,
                           const AddendRange& p, const OperandRange& state,
                           const OperandRange& factor, int64_t terms) {
  Certificate c{};
  if (!p.plain || !state.plain || f.kind != Kind::kFloat) return c;
  const bool nearest = mode == Rounding::kNearestEven;
  const bool brackets = nearest && one_digit_less(in, f);
  if (f.man_bits < 1 || (f.man_bits > in.digits - 3 && !brackets)) return c;
  const int lx = f.emin - f.man_bits;
  // Every sum is a multiple of 2 to this power.
  const int finest = state.zero ? p.lowest : least_of(p.lowest, state.lowest);
  c.floor = p.lowest < lx;
  if (c.floor && brackets) return c;
  if (!f.subnormals && finest < f.emin) return c;

  int bound = in.enough;
  if (nearest) {
    const int safe = nearest_bound(in, f, p.width, finest);
    c.everywhere = safe == kNoBound;
    c.odd = brackets || p.width > in.digits || safe < least_of(p.highest + in.spare, in.enough);
    if (!c.odd && !c.everywhere) bound = safe;
  } else {
    if (c.floor || mode == Rounding::kToOdd) return c;
    if (mode == Rounding::kStochastic && random_bits > in.digits - 2 - f.man_bits) return c;
  }
  // Scaled so that 2^bound is 2, what the rules compute with must stay normal: sums, and with the
  // floor the smallest binade. Of sums made odd only two bits below the last place matter.
  int least = finest;
  if (c.floor) least = c.odd ? f.emin : least_of(least_of(finest, lx), f.emin);
  least = least_of(least, factor.lowest);
  // 2^(1 - bound) is normal too, for the bounds from emin to 1 - emin.
  const int scalable = least_of(least, 0) + 1 - in.emin;
  const int overflow = overflow_exponent(f);
  c.overflows = overflow < least_of(bound, scalable);
  c.bound = least_of(bound, least_of(overflow, scalable));
  // Where the largest binade is full 2^overflow itself overflows, and n 2^H may be that.
  const bool strict = c.bound == overflow && overflow > log2_of(f.max);
  c.reached = highest_sum(f, mode, p, state, strict ? terms + 1 : terms) > c.bound;
  // A bound that single products exceed would only be found broken, so there is no certificate.
  c.valid = c.bound >= most_of(p.highest, in.emin) && factor.highest + 1 - c.bound <= -in.emin;
  // Where the smallest binade lies far above the bound, what the floor adds must be finite.
  if (c.floor) c.valid = c.valid && f.emin + 1 - c.bound + in.digits - f.man_bits <= 1 - in.emin;
  return c;
}

}  // namespace lpk
