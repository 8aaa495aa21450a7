// Counts of what rounding did to values: docs/contract.md, "Counts". Every finite value is counted
// in at most one of the first three places, except a zero outside of a given range, which is
// counted in two; every other value is counted in the fourth.
#pragma once

#include "round.h"

namespace lpk {

enum Count : int {
  kOverflows = 0,   // finite, and beyond the ends of the format once rounded, exponent unbounded
  kUnderflows = 1,  // finite and not zero, rounded to zero
  kZeros = 2,
  kNonfinite = 3,
  kCounts = 4,
};

// The histogram has a bin for each biased exponent field of float32; it stands behind the counts
// where it is asked for.
constexpr int kBins = 256;

// The format without ends: it rounds as if the exponent, or the word, had no bound.
LPK_HD Format unbounded(const Format& f) {
  Format u = f;
  u.max = u.overflow_from = u.beyond = HUGE_VAL;
  u.lowest = -HUGE_VAL;
  u.is_unsigned = false;
  u.overflow = f.kind == Kind::kFixed ? Overflow::kSaturate : Overflow::kInfinity;
  return u;
}

// The overflows of a rounding: values that lie beyond the ends of the format once they are rounded
// to the format without ends. A table has no values there, so that the value itself is judged.
struct Overflows {
  Format endless;
  Rounding mode;
  bool is_table;
  double low, high;

  Overflows(const Format& f, Rounding rounding)
      : endless(unbounded(f)),
        mode(rounding),
        is_table(f.kind == Kind::kTable),
        low(f.kind != Kind::kFloat ? f.lowest
            : f.is_unsigned        ? 0.0
                                   : -f.max),
        high(f.max) {}

  // Of exact values, or sums made odd.
  template <class D>
  LPK_HD auto among(D x, D threshold) const {
    const D r = is_table ? x : round_to<D>(x, endless, mode, threshold);
    return (r > high) | (r < low);
  }
};

// The bin of a double. Values below 2^-126 have the bin of zero, and values beyond float32 the bin
// of its largest values.
LPK_HD int exponent_bin(double x) {
  constexpr int kBiasDifference = 1023 - 127;
  const int field = static_cast<int>(bits_of_double(x) >> 52 & 0x7ff);
  if (field == 0x7ff) return kBins - 1;
  const int bin = field - kBiasDifference;
  return bin < 0 ? 0 : bin > kBins - 2 ? kBins - 2 : bin;
}

}  // namespace lpk
