// Certified sums to nearest of fewer rows or columns, without the subnormals' floor.
#include "shaped.h"

namespace lpk::cuda {
namespace {

template <template <class, Limit> class Rule>
void launch_splitting(const Job& job, cudaStream_t stream) {
  launch_shapes<Rule<NearestSum, Limit::kProved>, Tier::kSplit>(job, stream);
  launch_shapes<Rule<NearestSum, Limit::kWatched>, Tier::kSplitWatched>(job, stream);
}

}  // namespace

void launch_shaped_split(const Job& job, cudaStream_t stream) {
  if (splits_shortly(job.acc.fmt)) return launch_splitting<TwoStepRule>(job, stream);
  launch_splitting<SplitRule>(job, stream);
}

}  // namespace lpk::cuda
