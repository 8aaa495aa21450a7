// Certified sums to nearest that are seldom asked for: clipped, made odd, in double.
#include "certified.h"
#include "cuda/rules/double_rules.h"

namespace lpk::cuda {
namespace {

template <bool kTables, bool kChunked>
struct Rare {
  template <Tier kTier, class Rule>
  using Of = TierTile<kTier, CertifiedTile<Rule, kTables, kChunked>>;
  static void launch(const Job& job, cudaStream_t stream) {
    Tiers<Of<Tier::kTwoStepClipped, TwoStepRule<NearestSum, Limit::kClipped>>,
          Of<Tier::kTwoStepOdd, TwoStepRule<OddSum, Limit::kWatched>>,
          Of<Tier::kSplitClipped, SplitRule<NearestSum, Limit::kClipped>>,
          Of<Tier::kSplitOdd, SplitRule<OddSum, Limit::kWatched>>,
          Of<Tier::kFloorClipped, FloorRule<NearestSum, Limit::kClipped>>,
          Of<Tier::kFloorOdd, FloorRule<OddSum, Limit::kWatched>>,
          Of<Tier::kDoubleSplit, DoubleSplitRule>,
          Of<Tier::kDoubleFloor, DoubleFloorRule>>::launch(job, stream);
  }
};

}  // namespace

void launch_rare(const Job& job, cudaStream_t stream) { launch_rare_layout<Rare>(job, stream); }

}  // namespace lpk::cuda
