// Certified sums in double, to nearest.
#include "cuda/rules/double_rules.h"
#include "fast.h"

namespace lpk::cuda {

void launch_double(const Job& job, cudaStream_t stream) {
  launch_rule<DoubleSplitRule, Tier::kDoubleSplit>(job, stream);
  launch_rule<DoubleFloorRule, Tier::kDoubleFloor>(job, stream);
}

}  // namespace lpk::cuda
