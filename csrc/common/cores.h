// Blocks of products that nothing cuts, and the adders of AMD's matrix cores (docs/contract.md).
// All arithmetic is exact in double; lanes are as in round.h.
//
// p and binades: the products of a block and the products of their factors' binades
// (counted_binade), by position, with zeros where there is none. c: the running sum, of float32.
// Every function gives a number that the sum is rounded from, once.
#pragma once

#include "orders.h"

namespace lpk {

// The sum of c and `count` products, made odd; its zero has the sign that zero sums have. `p` is
// -0 where a lane has no product, or +0 toward_negative.
template <class D>
__attribute__((noinline)) D exact_block(D c, const D* p, int count, Rounding mode) {
  using L = Lanes<D>;
  D parts[kMaxBlock + 1];
  D plain = c;
  auto every = L::bits(c), any = every;
  int length = 0;
  // Shewchuk 1997, grow-expansion: parts do not overlap, and their sum is exact.
  const auto grow = [&](D x) {
    for (int i = 0; i < length; ++i) {
      const D sum = x + parts[i];
      const D of_part = sum - x;
      parts[i] = (x - (sum - of_part)) + (parts[i] - of_part);
      x = sum;
    }
    parts[length++] = x;
  };
  grow(c);
  for (int i = 0; i < count; ++i) {
    plain += p[i];
    every &= L::bits(p[i]);
    any |= L::bits(p[i]);
    grow(p[i]);
  }
  // From the least on: what one step makes odd lies below the last place of the next.
  D total = parts[0];
  for (int i = 1; i < length; ++i) total = odd_sum<D>(total, parts[i]);
  const auto sign = mode == Rounding::kTowardNegative ? any : every;
  total = total == 0.0 ? L::value(sign & kSignBit) : total;
  return plain - plain == 0.0 ? total : plain;  // An infinity or NaN is the plain sum.
}

// 2^e / x for a power of two x.
template <class D>
LPK_HD D inverse_of(D x, int e = 0) {
  using L = Lanes<D>;
  return L::value((int64_t{2046 + e} << 52) - L::bits(x));
}

// The binade of c, with which zeros and subnormal numbers count as 2^-126.
template <class D>
LPK_HD D binade_of_sum(D c) {
  using L = Lanes<D>;
  return L::max(L::value(L::bits(c) & kExponentBits), L::all(0x1p-126));
}

// CDNA2: float32 at every step, and zero below its normal numbers. Double does not round twice.
template <class D>
LPK_HD D tree_block(D c, const D* p, int block, const Accumulator& acc) {
  const auto rounded = [&](D x) {
    const D r = round_to_float_nearest_even<D>(x, acc.fmt);
    return magnitude<D>(r) < 0x1p-126 ? D{} : r;
  };
  D t = rounded(rounded(p[0]) + rounded(p[1]));
  if (block == 4) t = rounded(t + rounded(rounded(p[2]) + rounded(p[3])));
  return rounded(rounded(c) + t);
}

// The places of CDNA3's sum of c and products: S = `units` times 2^-aligned_bits of `top`, which is
// the products' largest binade, 0 if all are zeros. Then c and the sum are floored.
template <class D>
LPK_HD D floored_sum(D c, D units, D top, bool halves, const Accumulator& acc) {
  using L = Lanes<D>;
  const int bits = acc.aligned_bits;
  const D of_c = binade_of_sum<D>(c);
  // An infinite c must not make the quotient of two places 0.
  const D largest = L::max(top, of_c > 0x1p300 ? L::all(0x1p300) : of_c);
  const AlignedPlace<D> place(largest, bits);
  D of_sum = L::floor(c * place.scale);
  if (halves) of_sum = of_c * power_of_two(bits + 1) < largest ? D{} : of_sum;
  // In units of 2^-(bits + 8) of the largest: where S reaches below, a sum is cut at this place or
  // above it.
  const AlignedPlace<D> products(top, bits);
  const D below = L::floor(units * (products.unit * place.scale * 256.0));
  const D sum = (below + of_sum * 256.0) * (place.unit * 0x1p-8);
  const D last = binade_of_sum<D>(sum) * power_of_two(-bits - 7);
  const D floored = L::floor(sum * inverse_of<D>(last)) * last;
  const D finite = sum - sum == 0.0 ? floored : sum;
  return ((top == 0.0) & (units == 0.0)) ? c : finite;
}

// A product of CDNA3 in units of a place; from 2^128 on it is infinite. `small`: none is so large.
template <class D>
LPK_HD D cut_product(D p, const AlignedPlace<D>& place, bool small) {
  using L = Lanes<D>;
  if (small) return place.cut(p);
  const D infinite = L::value((L::bits(p) & kSignBit) | kExponentBits);
  return place.cut(magnitude<D>(p) >= 0x1p128 ? infinite : p);
}

// CDNA3 with halves: products of even and of odd positions are cut at two different places.
template <class D>
LPK_HD D floored_block(D c, const D* p, const D* binades, int block, bool small,
                       const Accumulator& acc) {
  using L = Lanes<D>;
  D top{};
#pragma GCC unroll 16
  for (int i = 0; i < block; ++i) top = L::max(binades[i], top);
  const AlignedPlace<D> place(top, acc.aligned_bits);
  D units{};
#pragma GCC unroll 16
  for (int i = 0; i < block; ++i) units += cut_product<D>(p[i], place, small);
  return floored_sum<D>(c, units, top, false, acc);
}

template <class D>
LPK_HD D floored_halves_block(D c, const D* p, const D* binades, int block, bool small,
                              const Accumulator& acc) {
  using L = Lanes<D>;
  D tops[2] = {}, units[2] = {};
#pragma GCC unroll 16
  for (int i = 0; i < block; ++i) tops[i % 2] = L::max(binades[i], tops[i % 2]);
  const AlignedPlace<D> even(tops[0], acc.aligned_bits), odd(tops[1], acc.aligned_bits);
#pragma GCC unroll 16
  for (int i = 0; i < block; i += 2) {
    units[0] += cut_product<D>(p[i], even, small);
    units[1] += cut_product<D>(p[i + 1], odd, small);
  }
  const D top = L::max(tops[0], tops[1]);
  const AlignedPlace<D> place(top, acc.aligned_bits);
  const D sum = L::floor(units[0] * (even.unit * place.scale)) +
                L::floor(units[1] * (odd.unit * place.scale));
  return floored_sum<D>(c, sum, top, true, acc);
}

// RDNA3: a magnitude with another sign than c's enters as its complement without the carry.
template <class D>
LPK_HD D opposed_block(D c, const D* p, const D* binades, const Accumulator& acc) {
  using L = Lanes<D>;
  const auto sign = L::bits(c) & kSignBit;
  const D sum = magnitude<D>(c) < 0x1p-126 ? L::value(sign) : c;
  const D plain = sum + p[0] + p[1];
  const D largest = L::max(L::max(magnitude<D>(sum), magnitude<D>(p[0])), magnitude<D>(p[1]));
  const D of_values = L::value(L::bits(largest) & kExponentBits) * 0.25;
  const D top = L::max(L::max(binades[0], binades[1]), of_values);
  const AlignedPlace<D> place(top, acc.aligned_bits);
  D units = L::floor(magnitude<D>(sum) * place.scale);
  for (int i = 0; i < 2; ++i) {
    const D count = L::floor(magnitude<D>(p[i]) * place.scale);
    units += ((L::bits(p[i]) ^ sign) & kSignBit) == 0 ? count : -1.0 - count;
  }
  D total = units * place.unit;
  total = L::value(L::bits(total) ^ sign);
  // 24 bits of an unbounded exponent that end below 2^-126 are zero, and so is a sum of zeros.
  total = magnitude<D>(total) < 0x1p-126 - 0x1p-151 ? D{} : total;
  total = largest == 0.0 ? D{} : total;
  return plain - plain == 0.0 ? total : plain;
}

// RDNA4: a pair is floored at a place of its own, then pairs and c at the largest of the places.
template <class D>
LPK_HD D pairs_block(D c, const D* p, const D* binades, const Accumulator& acc) {
  using L = Lanes<D>;
  const int bits = acc.aligned_bits;
  D top = binade_of_sum<D>(c) * 0.25, plain = c;
  D of_pair[2];
  for (int i = 0; i < 2; ++i) {
    of_pair[i] = L::max(binades[2 * i], binades[2 * i + 1]);
    top = L::max(of_pair[i], top);
  }
  const AlignedPlace<D> place(top, bits);
  const auto lost = (magnitude<D>(c) < place.unit) & (place.unit > 0x1p-126);
  D units = lost ? D{} : L::floor(c * place.scale);
  for (int i = 0; i < 2; ++i) {
    const AlignedPlace<D> own(of_pair[i], bits);
    const D sum = L::floor(p[2 * i] * own.scale) + L::floor(p[2 * i + 1] * own.scale);
    units += L::floor(sum * (own.unit * place.scale));
    plain += p[2 * i] + p[2 * i + 1];
  }
  return plain - plain == 0.0 ? units * place.unit : plain;
}

// The number that the sum after a block of `block` positions is rounded from.
template <class D>
LPK_HD D block_of_core(D c, const D* p, const D* binades, Adder adder, int block, bool small,
                       const Accumulator& acc) {
  switch (adder) {
    case Adder::kTree:
      return tree_block<D>(c, p, block, acc);
    case Adder::kFloored:
      return floored_block<D>(c, p, binades, block, small, acc);
    case Adder::kFlooredHalves:
      return floored_halves_block<D>(c, p, binades, block, small, acc);
    case Adder::kOpposed:
      return opposed_block<D>(c, p, binades, acc);
    case Adder::kPairs:
    case Adder::kPairsSwapped:
      return pairs_block<D>(c, p, binades, acc);
    case Adder::kAligned:
      break;
  }
  return exact_block<D>(c, p, block, acc.rounding);
}

}  // namespace lpk
