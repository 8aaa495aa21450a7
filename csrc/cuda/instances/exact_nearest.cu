// Exact sums to nearest.
#include "exact.h"

namespace lpk::cuda {

void launch_exact_nearest(const Job& job, cudaStream_t stream) {
  if (job.acc.rounding == Rounding::kNearestAway)
    return launch_exact_mode<Rounding::kNearestAway>(job, stream);
  launch_exact_mode<Rounding::kNearestEven>(job, stream);
}

}  // namespace lpk::cuda
