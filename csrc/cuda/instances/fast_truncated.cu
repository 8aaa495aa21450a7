// Certified sums toward zero, and float32's own.
#include "fast.h"

namespace lpk::cuda {

void launch_truncated(const Job& job, cudaStream_t stream) {
  launch_rule<TruncationRule, Tier::kTruncated>(job, stream);
}

void launch_float32(const Job& job, cudaStream_t stream) {
  switch (job.acc.rounding) {
    case Rounding::kTowardZero:
      return launch_rule<NativeRule<Rounding::kTowardZero>, Tier::kNative>(job, stream);
    case Rounding::kTowardPositive:
      return launch_rule<NativeRule<Rounding::kTowardPositive>, Tier::kNative>(job, stream);
    case Rounding::kTowardNegative:
      return launch_rule<NativeRule<Rounding::kTowardNegative>, Tier::kNative>(job, stream);
    default:
      return launch_rule<NativeRule<Rounding::kNearestEven>, Tier::kNative>(job, stream);
  }
}

}  // namespace lpk::cuda
