// As what an element is counted: for the kernels and for tests on the host.
#pragma once

#include "affine_map.h"
#include "common/count.h"

namespace lpk::cuda {

// The counts that an element belongs to, a bit for each: none, one, or two for a zero that lies
// outside of a given range. over: whether a finite value overflows; result: what it became.
LPK_HD uint32_t counted_as(double x, bool over, double result) {
  if (!(fabs(x) < HUGE_VAL)) return 1u << kNonfinite;
  const uint32_t beyond = over ? 1u << kOverflows : 0u;
  if (x == 0.0) return beyond | 1u << kZeros;
  return !over && result == 0.0 ? 1u << kUnderflows : beyond;
}

// Of a value as rounding to a float or fixed format sees it; only beyond the ends it is rounded
// once more, without them.
LPK_HD bool overflows(double x, const Format& f, Rounding rounding, double threshold) {
  const double low = low_end(f);
  if (x >= low && x <= f.max) return false;
  return beyond_ends<double>(round_to<double>(x, unbounded(f), rounding, threshold), low, f.max);
}

// Of a value of a slice with the given ends.
LPK_HD bool outside(double x, double lo, double hi, const AffineCodes& codes) {
  const AffineEnds ends = affine_ends(lo, hi, codes);
  return (x < ends.low) | (x > ends.high);
}

}  // namespace lpk::cuda
