// Certified sums in double, to nearest.
#include "double_rules.h"
#include "fast.h"

namespace lpk::cuda {

void launch_double(const Job& job, cudaStream_t stream) {
  launch_rule<DoubleSplitRule<Limit::kProved>, Tier::kDoubleSplit>(job, stream);
  launch_rule<DoubleSplitRule<Limit::kWatched>, Tier::kDoubleSplitWatched>(job, stream);
  launch_rule<DoubleFloorRule<Limit::kProved>, Tier::kDoubleFloor>(job, stream);
  launch_rule<DoubleFloorRule<Limit::kWatched>, Tier::kDoubleFloorWatched>(job, stream);
}

}  // namespace lpk::cuda
