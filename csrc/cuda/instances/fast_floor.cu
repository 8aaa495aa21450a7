// Certified sums to nearest, with the subnormals' floor.
#include "fast.h"

namespace lpk::cuda {

void launch_floor(const Job& job, cudaStream_t stream) {
  if (is_square(job.shaped)) {
    launch_rule<FloorRule<NearestSum, Limit::kProved>, Tier::kFloor>(job, stream);
    launch_rule<FloorRule<NearestSum, Limit::kWatched>, Tier::kFloorWatched>(job, stream);
  }
  launch_rule<FloorRule<OddSum, Limit::kWatched>, Tier::kOddFloor>(job, stream);
  if (job.acc.fmt.overflow == Overflow::kSaturate)
    launch_rule<FloorRule<NearestSum, Limit::kClipped>, Tier::kFloorClipped>(job, stream);
}

}  // namespace lpk::cuda
