// The operations that the rounding rules need on lanes: their bits, their values, floor, trunc, max
// and fma.
//
// The rules in round.h and accumulate.h are templates over D: a double (scalar code and CUDA), or a
// vector of doubles (csrc/cpu/lanes). Arithmetic, comparison and `mask ? a : b` are the
// language's own for both.
#pragma once

#include "format.h"

namespace lpk {

template <class D>
struct Lanes;

template <>
struct Lanes<double> {
  using Bits = int64_t;

  LPK_HD static Bits bits(double x) { return bits_of_double(x); }
  LPK_HD static double value(Bits b) { return double_of_bits(b); }
  LPK_HD static double all(double x) { return x; }
  // b where a is NaN, as the vector instructions have it.
  LPK_HD static double max(double a, double b) { return a > b ? a : b; }
  LPK_HD static double floor(double x) { return ::floor(x); }
  LPK_HD static double trunc(double x) { return ::trunc(x); }
  LPK_HD static double fma(double a, double b, double c) { return ::fma(a, b, c); }
};

constexpr int64_t kSignBit = INT64_MIN;
constexpr int64_t kExponentBits = 0x7ff0000000000000;

template <class D>
LPK_HD D magnitude(D x) {
  return Lanes<D>::value(Lanes<D>::bits(x) & ~kSignBit);
}

}  // namespace lpk
