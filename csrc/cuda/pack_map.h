// What packing does with one value, and which thread takes which: for the kernel and for tests.
#pragma once

#include "sums.h"

namespace lpk::cuda {

// A block packs kPackSide x kPackSide elements, 32 x 8 threads of four elements each.
constexpr int kPackSide = 32;
constexpr int kPackRows = 8;

LPK_HD uint32_t last_set_bit(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__ffs(static_cast<int>(x))) - 1;
#else
  return static_cast<uint32_t>(__builtin_ctz(x));
#endif
}

LPK_HD Facts merged(const Facts& a, const Facts& b) {
  return {a.mantissas | b.mantissas, a.highest > b.highest ? a.highest : b.highest,
          a.lowest > b.lowest ? a.lowest : b.lowest,
          a.last_place > b.last_place ? a.last_place : b.last_place};
}

LPK_HD Facts facts_of(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude == 0 || bits == kAbsent) return {0, 0, 0, 0};
  const uint32_t mantissa = magnitude & 0x7fffffu;
  const uint32_t exponent = magnitude >> 23;
  // A power of two has its one bit at place 23.
  const uint32_t place = mantissa == 0 ? 23 : last_set_bit(mantissa);
  return {mantissa, exponent, 255 - exponent, 512 - (exponent + place)};
}

// One value on its way into an operand.
LPK_HD float packed(float x, bool rounds, const Format& f, Rounding rounding) {
  if (!rounds) return canonical_float(x);
  return canonical_float(round_to<double>(x, f, rounding, 0.0));
}

}  // namespace lpk::cuda
