// Exact sums rounded in a direction, or to odd.
#include "exact.h"

namespace lpk::cuda {

void launch_exact_directed(const Job& job, cudaStream_t stream) {
  switch (job.acc.rounding) {
    case Rounding::kTowardZero:
      return launch_exact_mode<Rounding::kTowardZero>(job, stream);
    case Rounding::kTowardPositive:
      return launch_exact_mode<Rounding::kTowardPositive>(job, stream);
    case Rounding::kTowardNegative:
      return launch_exact_mode<Rounding::kTowardNegative>(job, stream);
    default:
      return launch_exact_mode<Rounding::kToOdd>(job, stream);
  }
}

}  // namespace lpk::cuda
