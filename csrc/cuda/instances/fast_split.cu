// Certified sums to nearest, without the subnormals' floor.
#include "fast.h"

namespace lpk::cuda {
namespace {

template <template <class, Limit> class Rule>
void launch_splitting(const Job& job, cudaStream_t stream) {
  if (is_square(job.shaped)) {
    launch_rule<Rule<NearestSum, Limit::kProved>, Tier::kSplit>(job, stream);
    launch_rule<Rule<NearestSum, Limit::kWatched>, Tier::kSplitWatched>(job, stream);
  }
  launch_rule<Rule<OddSum, Limit::kWatched>, Tier::kOddSplit>(job, stream);
  if (job.acc.fmt.overflow == Overflow::kSaturate)
    launch_rule<Rule<NearestSum, Limit::kClipped>, Tier::kSplitClipped>(job, stream);
}

}  // namespace

void launch_split(const Job& job, cudaStream_t stream) {
  if (splits_shortly(job.acc.fmt)) return launch_splitting<TwoStepRule>(job, stream);
  launch_splitting<SplitRule>(job, stream);
}

}  // namespace lpk::cuda
