// How products join sums of half precision through float32 (plan.h says when): by a multiply-add,
// then a conversion of two sums at a time and back. Subnormals, infinities, NaN and -0 come out
// right by themselves.
#pragma once

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

#include "cuda/tiles/certified_tile.h"

namespace lpk::cuda {

// Two floats rounded to half precision, nearest even, as floats.
LPK_HD void round_to_half(float x, float y, float* rounded) {
#if defined(__CUDA_ARCH__)
  const float2 both = __half22float2(__floats2half2_rn(x, y));
  rounded[0] = both.x, rounded[1] = both.y;
#else
  const int64_t half[] = {0, 5, 10, 15, 0, 1, 0, 0};
  const Format f = float_format(half);
  rounded[0] = static_cast<float>(round_to<double>(x, f, Rounding::kNearestEven, 0.0));
  rounded[1] = static_cast<float>(round_to<double>(y, f, Rounding::kNearestEven, 0.0));
#endif
}

struct ConvertRule : RuleOf<Limit::kProved> {
  static constexpr bool kSigned = true;
  LPK_HD ConvertRule(const Format& f, int shift) : RuleOf<Limit::kProved>(f, shift) {}
};

LPK_HD void add_two(const ConvertRule&, float a, const float* b, float* sums) {
  round_to_half(fma_in<Rounding::kNearestEven>(a, b[0], sums[0]),
                fma_in<Rounding::kNearestEven>(a, b[1], sums[1]), sums);
}

}  // namespace lpk::cuda
