// Scales of block formats (OCP Microscaling Formats v1.0, section 6.3): every block is its elements
// times 2^X.
#pragma once

#include "accumulate.h"

namespace lpk {

// The number that is added to X in its byte, and the byte of a block that is NaN throughout.
constexpr int kScaleBias = 127;
constexpr uint32_t kNanScale = 255;

// floor(log2 x) of a positive normal double: every float32 but zero is one.
LPK_HD int exponent_of(double x) {
  return static_cast<int>(Lanes<double>::bits(x) >> 52 & 0x7ff) - 1023;
}

// The element format as blocks use it: values beyond max become max.
struct BlockElement {
  int64_t ints[kFormatInts];
  Format format;
  int emax;

  BlockElement() = default;
  explicit BlockElement(const int64_t* given) {
    std::memcpy(ints, given, sizeof ints);
    ints[6] = static_cast<int64_t>(Overflow::kSaturate);
    format = number_format(ints);
    emax = exponent_of(format.max);
  }

  // X of the scale of a block whose largest magnitude is finite.
  LPK_HD int exponent_for(double largest) const {
    if (largest == 0.0) return -kScaleBias;
    const int x = exponent_of(largest) - emax;
    return x < -kScaleBias ? -kScaleBias : x > kScaleBias ? kScaleBias : x;
  }
};

}  // namespace lpk
