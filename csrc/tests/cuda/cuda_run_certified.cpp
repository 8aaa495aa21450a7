#include "cuda/rules/convert_rule.h"
#include "cuda/rules/double_rules.h"
#include "cuda/tiles/half_tile.h"
#include "cuda/tiles/stochastic_tile.h"
#include "cuda/tiles/tensor_tile.h"
#include "cuda_host_block.h"

namespace lpk_test {
namespace {

template <bool kBfloat16>
struct Half {
  template <bool kTables, bool kChunked>
  using Tile = lpk::cuda::HalfTile<kBfloat16, kTables, kChunked>;
};

void run_hardware(const Job& job) {
  using lpk::cuda::HardwareRule;
  if (job.acc.rounding == lpk::Rounding::kTowardZero)
    return run_rule<HardwareRule<lpk::Rounding::kTowardZero>>(job);
  if (job.acc.rounding == lpk::Rounding::kTowardPositive)
    return run_rule<HardwareRule<lpk::Rounding::kTowardPositive>>(job);
  if (job.acc.rounding == lpk::Rounding::kTowardNegative)
    return run_rule<HardwareRule<lpk::Rounding::kTowardNegative>>(job);
  run_nearest(job);
}

template <bool kBfloat16>
void to_halves(const lpk::cuda::Operand& from, uint16_t* to) {
  for (int64_t i = 0; i < from.size; ++i) to[i] = lpk::cuda::half_value<kBfloat16>(from.values[i]);
}

template <bool kBfloat16>
void run_tensor(const Job& job) {
  using lpk::cuda::TensorTile;
  to_halves<kBfloat16>(job.sums.left, job.left_halves);
  to_halves<kBfloat16>(job.sums.right, job.right_halves);
  lpk::cuda::with_tensor_shape(job.cut, [&](auto rows, auto cols) {
    constexpr int kRows = decltype(rows)::value, kCols = decltype(cols)::value;
    if (lpk::cuda::reads_tables(job.sums))
      return run_reported<TensorTile<kBfloat16, true, kRows, kCols>>(job);
    run_reported<TensorTile<kBfloat16, false, kRows, kCols>>(job);
  });
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
    case Tier::kTwoStepWatched:
    case Tier::kSplit:
    case Tier::kSplitWatched:
    case Tier::kFloor:
    case Tier::kFloorWatched:
      return run_nearest(job);
    case Tier::kTwoStepClipped:
      return run_rule<TwoStepRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kTwoStepOdd:
      return run_shapes<TwoStepRule<OddSum, Limit::kWatched>, false>(job);
    case Tier::kSplitClipped:
      return run_rule<SplitRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kSplitOdd:
      return run_shapes<SplitRule<OddSum, Limit::kWatched>, false>(job);
    case Tier::kFloorClipped:
      return run_rule<FloorRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kFloorOdd:
      return run_shapes<FloorRule<OddSum, Limit::kWatched>, false>(job);
    case Tier::kTruncated:
      return run_rule<lpk::cuda::TruncationRule>(job);
    case Tier::kStochastic:
      return run_layouts<lpk::cuda::StochasticTile>(job);
    case Tier::kDoubleSplit:
      return run_shapes<lpk::cuda::DoubleSplitRule, false>(job);
    case Tier::kDoubleFloor:
      return run_shapes<lpk::cuda::DoubleFloorRule, false>(job);
    case Tier::kConverted:
      return run_rule<lpk::cuda::ConvertRule>(job);
    case Tier::kHardwareHalf:
      return run_layouts<Half<false>::Tile>(job);
    case Tier::kHardwareBfloat16:
      return run_layouts<Half<true>::Tile>(job);
    case Tier::kHardwareFloat:
      return run_hardware(job);
    case Tier::kTensorHalf:
      return run_tensor<false>(job);
    case Tier::kTensorBfloat16:
      return run_tensor<true>(job);
  }
}

}  // namespace lpk_test
