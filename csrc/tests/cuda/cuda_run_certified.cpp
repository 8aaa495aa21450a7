#include "cuda/rules/convert_rule.h"
#include "cuda/rules/double_rules.h"
#include "cuda/tiles/stochastic_tile.h"
#include "cuda_host_block.h"

namespace lpk_host {
namespace {

void run_hardware(const Job& job) {
  using lpk::cuda::HardwareRule;
  if (job.acc.rounding == lpk::Rounding::kTowardZero)
    return run_rare<HardwareRule<lpk::Rounding::kTowardZero>>(job);
  if (job.acc.rounding == lpk::Rounding::kTowardPositive)
    return run_rare<HardwareRule<lpk::Rounding::kTowardPositive>>(job);
  if (job.acc.rounding == lpk::Rounding::kTowardNegative)
    return run_rare<HardwareRule<lpk::Rounding::kTowardNegative>>(job);
  run_rule<HardwareRule<lpk::Rounding::kNearestEven>>(job);
}

}  // namespace

void run_tier(const Job& job) {
  using lpk::cuda::FloorRule;
  using lpk::cuda::Limit;
  using lpk::cuda::NearestSum;
  using lpk::cuda::OddSum;
  using lpk::cuda::SplitRule;
  using lpk::cuda::TwoStepRule;
  switch (job.plan->tier) {
    case Tier::kExact:
      return;
    case Tier::kTwoStep:
      return run_rule<TwoStepRule<NearestSum, Limit::kProved>>(job);
    case Tier::kTwoStepWatched:
      return run_rule<TwoStepRule<NearestSum, Limit::kWatched>>(job);
    case Tier::kTwoStepClipped:
      return run_rare<TwoStepRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kTwoStepOdd:
      return run_rare<TwoStepRule<OddSum, Limit::kWatched>>(job);
    case Tier::kSplit:
      return run_rule<SplitRule<NearestSum, Limit::kProved>>(job);
    case Tier::kSplitWatched:
      return run_rule<SplitRule<NearestSum, Limit::kWatched>>(job);
    case Tier::kSplitClipped:
      return run_rare<SplitRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kSplitOdd:
      return run_rare<SplitRule<OddSum, Limit::kWatched>>(job);
    case Tier::kFloor:
      return run_rule<FloorRule<NearestSum, Limit::kProved>>(job);
    case Tier::kFloorWatched:
      return run_rule<FloorRule<NearestSum, Limit::kWatched>>(job);
    case Tier::kFloorClipped:
      return run_rare<FloorRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kFloorOdd:
      return run_rare<FloorRule<OddSum, Limit::kWatched>>(job);
    case Tier::kDoubleSplit:
      return run_rare<lpk::cuda::DoubleSplitRule>(job);
    case Tier::kDoubleFloor:
      return run_rare<lpk::cuda::DoubleFloorRule>(job);
    case Tier::kTruncated:
      return run_rule<lpk::cuda::TruncationRule>(job);
    case Tier::kStochastic:
      return run_layouts<lpk::cuda::StochasticTile>(job);
    case Tier::kConverted:
      return run_rule<lpk::cuda::ConvertRule>(job);
    case Tier::kHardwareFloat:
      return run_hardware(job);
  }
}

}  // namespace lpk_host
