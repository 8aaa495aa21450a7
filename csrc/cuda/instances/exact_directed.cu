// Exact sums rounded in a direction, or to odd.
#include "wide.h"

namespace lpk::cuda {

void launch_wide_directed(const Job& job, cudaStream_t stream) {
  switch (job.acc.rounding) {
    case Rounding::kTowardZero:
      return launch_wide_mode<Rounding::kTowardZero>(job, stream);
    case Rounding::kTowardPositive:
      return launch_wide_mode<Rounding::kTowardPositive>(job, stream);
    case Rounding::kTowardNegative:
      return launch_wide_mode<Rounding::kTowardNegative>(job, stream);
    default:
      return launch_wide_mode<Rounding::kToOdd>(job, stream);
  }
}

}  // namespace lpk::cuda
