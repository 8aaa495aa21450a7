// Certified sums to nearest in float32, proved and watched, and through it in half precision.
#include "certified.h"
#include "cuda/rules/convert_rule.h"

namespace lpk::cuda {
namespace {

template <bool kTables, bool kChunked>
struct Nearest {
  template <Tier kTier, class Rule>
  using Of = TierTile<kTier, CertifiedTile<Rule, kTables, kChunked>>;
  static void launch(const Job& job, cudaStream_t stream) {
    Tiers<Of<Tier::kTwoStep, TwoStepRule<NearestSum, Limit::kProved>>,
          Of<Tier::kTwoStepWatched, TwoStepRule<NearestSum, Limit::kWatched>>,
          Of<Tier::kSplit, SplitRule<NearestSum, Limit::kProved>>,
          Of<Tier::kSplitWatched, SplitRule<NearestSum, Limit::kWatched>>,
          Of<Tier::kFloor, FloorRule<NearestSum, Limit::kProved>>,
          Of<Tier::kFloorWatched, FloorRule<NearestSum, Limit::kWatched>>,
          Of<Tier::kConverted, ConvertRule>>::launch(job, stream);
  }
};

}  // namespace

void launch_nearest(const Job& job, cudaStream_t stream) { launch_layout<Nearest>(job, stream); }

}  // namespace lpk::cuda
