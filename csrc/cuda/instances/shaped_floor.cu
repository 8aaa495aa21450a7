// Certified sums to nearest of fewer rows or columns, with the subnormals' floor.
#include "shaped.h"

namespace lpk::cuda {

void launch_shaped_floor(const Job& job, cudaStream_t stream) {
  launch_shapes<FloorRule<NearestSum, Limit::kProved>, Tier::kFloor>(job, stream);
  launch_shapes<FloorRule<NearestSum, Limit::kWatched>, Tier::kFloorWatched>(job, stream);
}

}  // namespace lpk::cuda
