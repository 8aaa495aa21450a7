// Sums in other orders than one product after the other: what joins one node of a tree, one product
// of Kahan's sum, one aligned block. docs/contract.md has the rules; lanes as in round.h.
#pragma once

#include "accumulate.h"

namespace lpk {

// Both addends may be products. Under wrap one of 2^50 quanta or more is reduced as in
// reduced_addend, but keeps its sign and stays larger than the other, if that is a smaller number:
// then the sum has the sign of the exact one, which directed modes and ties ask for, and at most
// 50 bits, or 27 below the word's range.
template <class D>
LPK_HD D reduced_product(D p, D other, const Format& f) {
  using L = Lanes<D>;
  const D size = L::value(L::bits(p) & ~kSignBit);
  const D other_size = L::value(L::bits(other) & ~kSignBit);
  const double whole = f.quantum * 0x1p50;
  const double span = f.modulus * f.quantum;
  const D beside = other_size < whole ? other_size : D{};
  const D rest = size - L::floor(size * (1.0 / span)) * span;
  const D reduced = rest + (L::floor(beside * (1.0 / span)) + 1.0) * span;
  const D with_sign = L::value(L::bits(reduced) | (L::bits(p) & kSignBit));
  return (size >= whole) & (size < HUGE_VAL) ? with_sign : p;
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

// Kahan's step behind y = round(p - error): sum' = sum + y, error' = (sum' - sum) - y, by three
// rounded additions.
template <class D, class Add>
LPK_HD void add_compensated(D& sum, D& error, D y, const Add& add) {
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

  // Products and sums are 0, or 2^-298 .. 2^257, or inf or NaN: whatever the place then, the sum is
  // inf or NaN too.
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

  // The exact sum of what was cut, `units` of them. `signs`: the bits of all addends, ORed.
  template <class Bits>
  LPK_HD D sum_of(D units, Bits signs, Rounding mode) const {
    using L = Lanes<D>;
    if (mode == Rounding::kTowardNegative)
      units = units == 0.0 ? L::value(signs & kSignBit) : units;
    return units * unit;
  }
};

}  // namespace lpk
