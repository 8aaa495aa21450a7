// Kernels of the rare tiers, made odd and in double, for tiles that are not square (shapes.h).
// Elements are always looked up in tables: that serves operands that lie side by side too.
#pragma once

#include "certified.h"
#include "cuda/rules/double_rules.h"

namespace lpk::cuda {

template <class Rule, int kRows, int kCols>
using RareTile = TileOfShape<Rule, true, kRows, kCols>;

template <int kRows, int kCols>
void launch_rare_shape(const Job& job, cudaStream_t stream) {
  Tiers<Made<Tier::kTwoStepOdd, RareTile<TwoStepRule<OddSum, Limit::kWatched>, kRows, kCols>>,
        Made<Tier::kSplitOdd, RareTile<SplitRule<OddSum, Limit::kWatched>, kRows, kCols>>,
        Made<Tier::kFloorOdd, RareTile<FloorRule<OddSum, Limit::kWatched>, kRows, kCols>>,
        Made<Tier::kDoubleSplit, RareTile<DoubleSplitRule, kRows, kCols>>,
        Made<Tier::kDoubleFloor, RareTile<DoubleFloorRule, kRows, kCols>>>::launch(job, stream);
}

}  // namespace lpk::cuda
