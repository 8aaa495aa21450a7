// Certified sums to nearest, without the subnormals' floor.
#include "fast.h"

namespace lpk::cuda {

void launch_split(const Job& job, cudaStream_t stream) {
  launch_rule<SplitRule<NearestSum, Limit::kProved>, Tier::kSplit>(job, stream);
  launch_rule<SplitRule<NearestSum, Limit::kWatched>, Tier::kSplitWatched>(job, stream);
  launch_rule<SplitRule<OddSum, Limit::kWatched>, Tier::kOddSplit>(job, stream);
  if (job.acc.fmt.overflow == Overflow::kSaturate)
    launch_rule<SplitRule<NearestSum, Limit::kClipped>, Tier::kSplitClipped>(job, stream);
}

}  // namespace lpk::cuda
