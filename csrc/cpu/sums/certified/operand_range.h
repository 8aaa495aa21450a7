// The ranges of packed operands, which certificates are computed from (common/certificate.h).
#pragma once

#include <algorithm>
#include <cmath>

#include "common/certificate.h"
#include "cpu/drivers/tile.h"

namespace lpk {
namespace {

// With kFinite infinities and NaN count as zeros. This and lowest_bit are compiled once, and not in
// every tier.
template <bool kFinite = false>
__attribute__((noinline)) OperandRange operand_range(const float* x, int64_t count) {
  constexpr uint32_t kMantissa = 0x007fffff;
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t mantissas = 0;
  uint32_t least = kExponent;
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = bits_of_float(x[i]);
    // By a mask: compilers make no vectors of a choice here.
    if (kFinite) bits &= 0u - static_cast<uint32_t>((bits & kExponent) != kExponent);
    mantissas |= bits & kMantissa;
    const uint32_t exponent = bits & kExponent;
    const uint32_t counted = (bits & (kMantissa | kExponent)) == 0 ? kExponent : exponent;
    least = counted < least ? counted : least;
    most = exponent > most ? exponent : most;
  }
  if (most == 0 && mantissas == 0) return range_of_zeros();
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

// The range of the running sums that a tile goes on from. With kFinite that of the finite ones.
template <bool kFinite>
__attribute__((noinline)) OperandRange state_range(const Tile& t, const Accumulator& acc) {
  OperandRange all = range_of_zeros();
  const bool begins = acc.chunk > 0 && t.position_of(0) % acc.chunk == 0;
  if (t.at_zero() || begins) return all;
  for (int64_t r = 0; r < t.rows; ++r)
    all = merged(all, operand_range<kFinite>(t.inner + r * t.stride, t.lanes));
  return all;
}

// The largest l such that every element is a multiple of 2^l, for plain elements. (`lowest` above
// is a bound: it takes the widest element to be the smallest one too.)
__attribute__((noinline)) inline int lowest_bit(const float* x, int64_t count) {
  constexpr uint32_t kInfinity = 0x7f800000;
  uint32_t least = kInfinity;
  for (int64_t i = 0; i < count; ++i) {
    const float size = std::fabs(x[i]);
    const uint32_t bits = bits_of_float(size);
    // Without its last bit; a power of two has none to lose.
    const uint32_t rest = (bits & 0x007fffff) != 0 ? bits & (bits - 1) : 0;
    const uint32_t difference = bits_of_float(size - float_of_bits(rest));
    const uint32_t last = difference == 0 ? kInfinity : difference;
    least = last < least ? last : least;
  }
  // It may be subnormal.
  return least == kInfinity ? 0 : std::ilogb(float_of_bits(least));
}

}  // namespace
}  // namespace lpk
