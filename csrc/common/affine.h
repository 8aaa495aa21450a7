// Affine formats: values coded on a line through the range of their slice. docs/contract.md,
// "Fixed, block and affine formats"; every step is one float64 operation.
#pragma once

#include "accumulate.h"

namespace lpk {

constexpr double kSmallestStep = 1e-8;

// The codes of an affine format.
struct AffineCodes {
  bool symmetric;
  double first, last;

  AffineCodes() = default;
  explicit AffineCodes(const int64_t* ints) {
    const int bits = static_cast<int>(ints[InAffine::kBits]);
    symmetric = ints[InAffine::kSymmetric] != 0;
    last = symmetric ? power_of_two(bits - 1) - 1 : power_of_two(bits) - 1;
    first = symmetric ? -last : 0.0;
  }
};

// Code c means c step + lo, but code `top` means hi.
template <class D>
struct AffineLine {
  D lo, hi, step, top;
};

// The line of a slice whose finite values lie in lo .. hi. A slice without any has lo > hi: its
// step is NaN, and every value becomes NaN.
LPK_HD AffineLine<double> affine_line(double lo, double hi, const AffineCodes& codes) {
  const bool any = lo <= hi;
  const double largest = fabs(lo) > fabs(hi) ? fabs(lo) : fabs(hi);
  const double exact = (codes.symmetric ? largest : hi - lo) / codes.last;
  const bool floored = !(exact >= kSmallestStep);
  AffineLine<double> line;
  line.lo = codes.symmetric ? 0.0 : lo;
  line.hi = hi;
  line.step = !any ? static_cast<double>(NAN) : floored ? kSmallestStep : exact;
  // A code that no value has, for lines whose last code is not hi.
  line.top = codes.symmetric || floored ? HUGE_VAL : codes.last;
  return line;
}

// Where x lies on its line, in steps, no further than the codes go. NaN stays.
template <class D>
LPK_HD D affine_position(D x, const AffineLine<D>& line, D first, D last) {
  D u = (x - line.lo) / line.step;
  u = u < first ? first : u;
  return u > last ? last : u;
}

// The value of a code.
template <class D>
LPK_HD D affine_value(D code, const AffineLine<D>& line) {
  const D on_line = code * line.step + line.lo;
  const D value = code == line.top ? line.hi : on_line;
  // A zero result is +0, also one that only float32 makes zero.
  return magnitude<D>(value) <= 0x1p-150 ? D{} : value;
}

// The format that positions are rounded in: codes have at most 17 bits with their sign, so it never
// saturates.
constexpr int64_t kAffineIntegers[kFormatInts] = {1, 24, 0, 1, 0, 0, 0, 0};

}  // namespace lpk
