#include "cuda_host_block.h"

namespace lpk_test {

void run_nearest(const Job& job) {
  using lpk::cuda::FloorRule;
  using lpk::cuda::Limit;
  using lpk::cuda::NearestSum;
  using lpk::cuda::SplitRule;
  using lpk::cuda::TwoStepRule;
  switch (job.plan->tier) {
    case Tier::kTwoStep:
      return run_shapes<TwoStepRule<NearestSum, Limit::kProved>, true>(job);
    case Tier::kTwoStepWatched:
      return run_shapes<TwoStepRule<NearestSum, Limit::kWatched>, true>(job);
    case Tier::kSplit:
      return run_shapes<SplitRule<NearestSum, Limit::kProved>, true>(job);
    case Tier::kSplitWatched:
      return run_shapes<SplitRule<NearestSum, Limit::kWatched>, true>(job);
    case Tier::kFloor:
      return run_shapes<FloorRule<NearestSum, Limit::kProved>, true>(job);
    case Tier::kFloorWatched:
      return run_shapes<FloorRule<NearestSum, Limit::kWatched>, true>(job);
    default:
      return run_shapes<lpk::cuda::HardwareRule<lpk::Rounding::kNearestEven>, true>(job);
  }
}

}  // namespace lpk_test
