// How an element is counted. Kernels and tests on the host share this.
#pragma once

#include "affine_map.h"
#include "common/count.h"

namespace lpk::cuda {

// The counts that an element belongs to, a bit for each. There is none, there is one, or there are
// two for a zero that lies outside of a given range. over: whether a finite value overflows.
// result: what the element became.
LPK_HD uint32_t counted_as(double x, bool over, double result) {
  if (!(fabs(x) < HUGE_VAL)) return 1u << kNonfinite;
  const uint32_t beyond = over ? 1u << kOverflows : 0u;
  if (x == 0.0) return beyond | 1u << kZeros;
  return !over && result == 0.0 ? 1u << kUnderflows : beyond;
}

// Whether a value overflows, as rounding to a float or fixed format sees it. Only a value beyond
// the ends is rounded once more, without the ends.
LPK_HD bool overflows(double x, const Format& f, Rounding rounding, double threshold) {
  const double low = low_end(f);
  if (x >= low && x <= f.max) return false;
  return beyond_ends<double>(round_to<double>(x, unbounded(f), rounding, threshold), low, f.max);
}

// Whether a value of a slice lies outside of the given ends.
LPK_HD bool outside(double x, double lo, double hi, const AffineCodes& codes) {
  const AffineEnds ends = affine_ends(lo, hi, codes);
  return (x < ends.low) | (x > ends.high);
}

}  // namespace lpk::cuda
