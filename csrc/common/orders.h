// Sums in other orders than one product after the other: one node of a tree, one product of Kahan's
// sum, one aligned block. docs/contract.md has the rules; lanes are as in round.h.
#pragma once

#include "accumulate.h"

namespace lpk {

// Both addends may be products. Under wrap, a product of 2^50 quanta or more is reduced as in
// reduced_addend, but it keeps its sign and stays larger than a smaller other addend. The sum then
// has the sign of the exact sum, which directed modes and ties need, and at most 50 bits, or 27
// below the word's range.
template <class D>
LPK_HD D reduced_product(D p, D other, const Format& f) {
  using L = Lanes<D>;
  const D size = magnitude<D>(p);
  const D other_size = magnitude<D>(other);
  const double whole = f.quantum * 0x1p50;
  const double span = f.modulus * f.quantum;
  const D beside = other_size < whole ? other_size : D{};
  const D rest = size - L::floor(size * (1.0 / span)) * span;
  const D reduced = rest + (L::floor(beside * (1.0 / span)) + 1.0) * span;
  const D with_sign = L::value(L::bits(reduced) | (L::bits(p) & kSignBit));
  return ((size >= whole) & (size < HUGE_VAL)) ? with_sign : p;
}

// round(p + q) of two products.
template <class D>
LPK_HD D add_products_rounded(D p, D q, const Format& f, Rounding mode, D threshold) {
  const bool wraps = f.overflow == Overflow::kWrap;
  D sum = wraps ? odd_sum<D>(reduced_product<D>(p, q, f), reduced_product<D>(q, p, f))
                : odd_sum<D>(p, q);
  if (mode == Rounding::kTowardNegative) sum = with_zero_sign<D>(sum, p, q);
  return round_to<D>(sum, f, mode, threshold);
}

// Kahan's step: y = p - error;  sum' = sum + y;  error' = (sum' - sum) - y, by four rounded
// additions.
template <class D, class Add>
LPK_HD void add_compensated(D& sum, D& error, D p, const Add& add) {
  const D y = add(-error, p);
  const D total = add(sum, y);
  error = add(add(total, -sum), -y);
  sum = total;
}

// The place of an aligned block: addends are cut to multiples of `unit`, 2^(e - aligned_bits) with
// e the exponent of the largest. They are then at most 257 integers of 41 bits: double holds their
// sum.
template <class D>
struct AlignedPlace {
  D scale, unit;  // scale is 1 / unit

  // Products and sums are 0, or 2^-298 .. 2^257, or inf or NaN. With an inf or NaN the sum is inf
  // or NaN too, whatever the place.
  LPK_HD AlignedPlace(D largest, int aligned_bits) {
    using L = Lanes<D>;
    largest = largest > 0x1p900 ? L::all(0x1p900) : largest;
    largest = L::max(largest, L::all(0x1p-400));
    const auto binade = L::bits(largest) & kExponentBits;
    const int64_t bits = int64_t{aligned_bits} << 52;
    scale = L::value((int64_t{2046} << 52) - binade + bits);
    unit = L::value(binade - bits);
  }

  // In units; its sign stays, also that of a zero.
  LPK_HD D cut(D x) const { return Lanes<D>::trunc(x * scale); }

  // The exact sum of the cut addends, in `units`. `signs`: the bits of all addends, ORed.
  template <class Bits>
  LPK_HD D sum_of(D units, Bits signs, Rounding mode) const {
    using L = Lanes<D>;
    if (mode == Rounding::kTowardNegative)
      units = units == 0.0 ? L::value(signs & kSignBit) : units;
    return units * unit;
  }
};

// Blocks aligned by their operands, the step of a tensor core (docs/contract.md): as above, but the
// place of a product is the product of its factors' binades, 2^max(floor(log2 |x|), emin) each.
//
// All of it is exact in double. A factor's binade is 2^-149 .. 2^127, a product's 2^-298 .. 2^254,
// a sum's that of its format, and `least_binade` 2^-300 .. 2^300. A product has 48 bits and is
// below 4 times its binade: cut, it is below 2^(aligned_bits + 2) units, and the sum below
// 2^(aligned_bits + 1). At most 256 products and the sum, with aligned_bits <= 40, stay below 2^51
// units. A unit is 2^-340 or more, so that scaling by it neither overflows nor rounds.

// 0 for zeros, infinities and NaN. The product with any other binade is then 0 too, which is below
// every binade that counts.
template <class D>
LPK_HD D counted_binade(D x, double min_normal) {
  using L = Lanes<D>;
  const D binade = L::value(L::bits(x) & kExponentBits);
  const D clamped = L::max(binade, L::all(min_normal));
  return ((x == 0.0) | (binade == HUGE_VAL)) ? D{} : clamped;
}

// A factor as a core reads it: below `least` it is the zero of its sign.
template <class D>
LPK_HD D flushed(D x, double least) {
  using L = Lanes<D>;
  return magnitude<D>(x) < least ? L::value(L::bits(x) & kSignBit) : x;
}

// The place follows from the largest binade of the products that are present. If no product is
// present and the sum is zero, only zeros, infinities and NaN are cut, and any place will do.
template <class D>
LPK_HD AlignedPlace<D> operand_place(D largest, D sum, const Accumulator& acc) {
  using L = Lanes<D>;
  const D of_sum = counted_binade<D>(sum, acc.fmt.min_normal);
  const D least = L::all(acc.least_binade);
  return AlignedPlace<D>(L::max(L::max(largest, of_sum), least), acc.aligned_bits);
}

// The sum after a block, from `units` of its place: it is rounded once, and is +0 where it is zero.
template <class D>
LPK_HD D rounded_block(D units, const AlignedPlace<D>& place, const Accumulator& acc, D threshold) {
  const D r = round_to_float<D>(units * place.unit, acc.fmt, acc.rounding, threshold, true);
  return r == 0.0 ? D{} : r;
}

// The turn of the position `offset` behind the first one of a run. In a run of `interleaved`
// blocks, from its first position on, positions take turns in pairs. In a run of RDNA4's four
// blocks the two in the middle change places.
LPK_HD int64_t turn_of(int64_t offset, const Accumulator& acc) {
  if (acc.adder != Adder::kPairsSwapped) return offset / 2 % acc.interleaved;
  const int64_t block = offset / 4;
  return block == 1 || block == 2 ? 3 - block : block;
}
// The first position of a turn, which is the k of its draw.
LPK_HD int64_t first_of_turn(int64_t turn, const Accumulator& acc) {
  if (acc.adder != Adder::kPairsSwapped) return 2 * turn;
  return 4 * turn_of(4 * turn, acc);
}

}  // namespace lpk
