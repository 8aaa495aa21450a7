// The products of sums in half precision: exact products, each added by one multiply-add, and
// products that are rounded to half precision before they are added.
#pragma once

#include "cpu/lanes/half_lanes.h"
#include "half_sums.h"

namespace lpk {
namespace {

// Each of these: acc + a product, rounded in the mode of the sums.
struct FusedHalfProduct {
  LPK_HD Half sum(Half a, Half b, Half acc) const { return half_fma(a, b, acc); }
};

template <bool kSaturates>
struct HalfProduct {
  Half limit = all_halves(65504.0f);
  LPK_HD Half sum(Half a, Half b, Half acc) const {
    Half p = half_product(a, b);
    if (kSaturates) p = half_within(p, limit);
    return half_sum(p, acc);
  }
};

}  // namespace
}  // namespace lpk
