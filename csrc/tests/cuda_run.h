// The kernels of a product as csrc/cuda starts them, on the host.
#pragma once

#include "../cuda/fast_tile.h"
#include "../cuda/half_tile.h"
#include "../cuda/stochastic_tile.h"
#include "../cuda/wide_tile.h"
#include "cuda_block.h"

namespace lpk_test {

using lpk::cuda::Job;
using lpk::cuda::Limit;
using lpk::cuda::Tier;

template <Rounding kMode>
void run_wide_mode(const Job& job) {
  const auto nothing = [](auto&, auto&) {};
  if (job.acc.has_product) return run_tiles<lpk::cuda::WideTile<2, kMode, true>>(job, nothing);
  run_tiles<lpk::cuda::WideTile<4, kMode, false>>(job, nothing);
}

inline void run_wide(const Job& job) {
  switch (job.acc.rounding) {
    case Rounding::kNearestEven:
      return run_wide_mode<Rounding::kNearestEven>(job);
    case Rounding::kNearestAway:
      return run_wide_mode<Rounding::kNearestAway>(job);
    case Rounding::kTowardZero:
      return run_wide_mode<Rounding::kTowardZero>(job);
    case Rounding::kTowardPositive:
      return run_wide_mode<Rounding::kTowardPositive>(job);
    case Rounding::kTowardNegative:
      return run_wide_mode<Rounding::kTowardNegative>(job);
    case Rounding::kToOdd:
      return run_wide_mode<Rounding::kToOdd>(job);
    case Rounding::kStochastic:
      return run_wide_mode<Rounding::kStochastic>(job);
  }
}

template <class Tile>
void run_reported(const Job& job) {
  run_tiles<Tile>(job, [](auto& parts, auto& shared) { parts[0].report(&shared); });
}

template <template <bool, bool> class Tile>
void run_layouts(const Job& job) {
  const bool tables = job.sums.left.lanes.at != nullptr;
  if (tables && job.acc.chunk > 0) return run_reported<Tile<true, true>>(job);
  if (tables) return run_reported<Tile<true, false>>(job);
  if (job.acc.chunk > 0) return run_reported<Tile<false, true>>(job);
  run_reported<Tile<false, false>>(job);
}

template <class Rule>
struct Ruled {
  template <bool kTables, bool kChunked>
  using Tile = lpk::cuda::FastTile<Rule, kTables, kChunked>;
};
template <class Rule>
void run_rule(const Job& job) {
  run_layouts<Ruled<Rule>::template Tile>(job);
}

template <bool kBfloat16>
struct Half {
  template <bool kTables, bool kChunked>
  using Tile = lpk::cuda::HalfTile<kBfloat16, kTables, kChunked>;
};

inline void run_native(const Job& job) {
  using lpk::cuda::Native;
  using lpk::cuda::NativeRule;
  const Native format = lpk::cuda::native_format(job.acc.fmt);
  if (format == Native::kHalf) return run_layouts<Half<false>::Tile>(job);
  if (format == Native::kBfloat16) return run_layouts<Half<true>::Tile>(job);
  if (job.acc.rounding == Rounding::kTowardZero)
    return run_rule<NativeRule<Rounding::kTowardZero>>(job);
  if (job.acc.rounding == Rounding::kTowardPositive)
    return run_rule<NativeRule<Rounding::kTowardPositive>>(job);
  if (job.acc.rounding == Rounding::kTowardNegative)
    return run_rule<NativeRule<Rounding::kTowardNegative>>(job);
  run_rule<NativeRule<Rounding::kNearestEven>>(job);
}

inline void run_tier(const Job& job) {
  using lpk::cuda::FloorRule;
  using lpk::cuda::NearestSum;
  using lpk::cuda::OddSum;
  using lpk::cuda::SplitRule;
  switch (job.plan->tier) {
    case Tier::kWide:
      return;
    case Tier::kSplit:
      return run_rule<SplitRule<NearestSum, Limit::kProved>>(job);
    case Tier::kSplitWatched:
      return run_rule<SplitRule<NearestSum, Limit::kWatched>>(job);
    case Tier::kSplitClipped:
      return run_rule<SplitRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kFloor:
      return run_rule<FloorRule<NearestSum, Limit::kProved>>(job);
    case Tier::kFloorWatched:
      return run_rule<FloorRule<NearestSum, Limit::kWatched>>(job);
    case Tier::kFloorClipped:
      return run_rule<FloorRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kOddSplit:
      return run_rule<SplitRule<OddSum, Limit::kWatched>>(job);
    case Tier::kOddFloor:
      return run_rule<FloorRule<OddSum, Limit::kWatched>>(job);
    case Tier::kTruncated:
      return run_rule<lpk::cuda::TruncationRule>(job);
    case Tier::kStochastic:
      return run_layouts<lpk::cuda::StochasticTile>(job);
    case Tier::kNative:
      return run_native(job);
  }
}

// The whole product. Returns the tier that the plan chose, and whether every tile was done again.
struct Ran {
  Tier tier;
  bool redone;
};
inline Ran run_product(Job* job) {
  const lpk::cuda::Sums& s = job->sums;
  if (!lpk::cuda::may_certify(job->acc) || job->chunks == 0) {
    run_wide(*job);
    return {Tier::kWide, false};
  }
  const lpk::cuda::Plan plan = lpk::cuda::plan_for(job->acc, s, *s.left.facts, *s.right.facts);
  const int64_t tiles = lpk::cuda::tile_count(s, lpk::cuda::kTile);
  std::vector<uint8_t> redo(static_cast<size_t>(tiles), 7);
  std::vector<float> outer(static_cast<size_t>(tiles * lpk::cuda::kTile * lpk::cuda::kTile), NAN);
  job->plan = &plan;
  job->redo = redo.data();
  job->outer = outer.data();
  run_tier(*job);
  if (plan.tier != Tier::kWide) {
    for (int64_t g = 0; g < s.count; ++g) {
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
          float* out = s.out + s.batch[g] + s.rows[i] + s.cols[j];
          *out =
              lpk::cuda::finished(*job, *out, static_cast<uint64_t>(s.row_batch[g] + s.row_keys[i]),
                                  static_cast<uint64_t>(s.col_batch[g] + s.col_keys[j]));
        }
      }
    }
  }
  run_wide(*job);
  job->plan = nullptr;
  return {plan.tier, std::count(redo.begin(), redo.end(), 0) == 0};
}

}  // namespace lpk_test
