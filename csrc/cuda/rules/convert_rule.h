// How products join sums of half precision through float32 (plan.h says when): by a multiply-add,
// then a conversion of two sums at a time and back. Subnormals, infinities, NaN and -0 come out
// right by themselves.
#pragma once

#include "cuda/tiles/certified_tile.h"
#include "half_steps.h"

namespace lpk::cuda {

struct ConvertRule : RuleOf<Limit::kProved> {
  static constexpr bool kSigned = true;
  LPK_HD ConvertRule(const Format& f, int shift) : RuleOf<Limit::kProved>(f, shift) {}
};

LPK_HD void add_two(const ConvertRule&, float a, const float* b, float* sums) {
  round_to_half(fma_in<Rounding::kNearestEven>(a, b[0], sums[0]),
                fma_in<Rounding::kNearestEven>(a, b[1], sums[1]), sums);
}

}  // namespace lpk::cuda
