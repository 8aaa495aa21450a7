#include "cuda_host_block.h"

namespace lpk_test {
namespace {

template <class Rule>
void run_shapes(const Job& job) {
  if (lpk::cuda::is_square(job.cut)) return run_rule<Rule>(job);
  lpk::cuda::with_shape(job.cut, [&](auto rows, auto cols) {
    constexpr int kRows = decltype(rows)::value, kCols = decltype(cols)::value;
    if (lpk::cuda::reads_tables(job.sums))
      return run_reported<lpk::cuda::TileOfShape<Rule, true, kRows, kCols>>(job);
    run_reported<lpk::cuda::TileOfShape<Rule, false, kRows, kCols>>(job);
  });
}

}  // namespace

void run_nearest(const Job& job) {
  using lpk::cuda::FloorRule;
  using lpk::cuda::Limit;
  using lpk::cuda::NearestSum;
  using lpk::cuda::SplitRule;
  using lpk::cuda::TwoStepRule;
  switch (job.plan->tier) {
    case Tier::kTwoStep:
      return run_shapes<TwoStepRule<NearestSum, Limit::kProved>>(job);
    case Tier::kTwoStepWatched:
      return run_shapes<TwoStepRule<NearestSum, Limit::kWatched>>(job);
    case Tier::kSplit:
      return run_shapes<SplitRule<NearestSum, Limit::kProved>>(job);
    case Tier::kSplitWatched:
      return run_shapes<SplitRule<NearestSum, Limit::kWatched>>(job);
    case Tier::kFloor:
      return run_shapes<FloorRule<NearestSum, Limit::kProved>>(job);
    case Tier::kFloorWatched:
      return run_shapes<FloorRule<NearestSum, Limit::kWatched>>(job);
    default:
      return run_shapes<lpk::cuda::HardwareRule<lpk::Rounding::kNearestEven>>(job);
  }
}

}  // namespace lpk_test
