// Blocks of CUDA threads on the host, which do the phases of cuda/product/tiles.h thread after
// thread; and the kernels of a product, as csrc/cuda starts them.
#include "cuda_run.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "cuda/product/done.h"
#include "cuda/product/job.h"
#include "cuda/product/parts.h"
#include "cuda/rules/convert_rule.h"
#include "cuda/rules/double_rules.h"
#include "cuda/tiles/aligned_tile.h"
#include "cuda/tiles/certified_tile.h"
#include "cuda/tiles/compensated_tile.h"
#include "cuda/tiles/exact_tile.h"
#include "cuda/tiles/half_tile.h"
#include "cuda/tiles/operand_tile.h"
#include "cuda/tiles/shapes.h"
#include "cuda/tiles/stochastic_tile.h"
#include "cuda/tiles/tensor_tile.h"

namespace lpk_test {
namespace {

using lpk::cuda::Limit;

// What watch_shared writes down, and for which thread.
struct Watch {
  std::vector<SharedAccess> seen;
  int64_t phase = 0;
  int thread = 0;
  const void* shared = nullptr;
} watch;

void see(const void* at, int bytes) {
  const auto place = reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(watch.shared);
  watch.seen.push_back({watch.phase, watch.thread, bytes, place});
}

// The threads take their turns forwards or backwards: phases must not depend on it.
template <class Part>
class HostBlock {
 public:
  using Shared = typename Part::Shared;
  HostBlock(std::vector<Part>* parts, Shared* shared, bool backwards)
      : parts_(parts), shared_(shared), backwards_(backwards) {}
  template <class Phase>
  void each(const Phase& phase) {
    const size_t count = parts_->size();
    watch.shared = shared_;
    ++watch.phase;
    for (size_t i = 0; i < count; ++i) {
      const size_t thread = backwards_ ? count - 1 - i : i;
      watch.thread = static_cast<int>(thread);
      phase((*parts_)[thread]);
    }
  }
  void sync() { backwards_ = !backwards_; }
  Shared* shared() { return shared_; }

 private:
  std::vector<Part>* parts_;
  Shared* shared_;
  bool backwards_;
};

// Whether certified kernels did a tile of the exact kernel for good.
bool done_before(const Job& job, int64_t side, int64_t tile) {
  if (job.plan == nullptr || job.plan->tier == Tier::kExact) return false;
  const bool doubtful = lpk::cuda::planned_cut(job).splits > 1 && job.arrived[tile] != 0;
  return !doubtful && !lpk::cuda::flagged(job, side, tile, 0, 1);
}

// Runs all tiles of a product, one after another, except those that certified kernels did.
template <class Part>
void run_tiles(const lpk::cuda::Job& job) {
  const auto shared = std::make_unique<typename Part::Shared>();
  const int64_t tiles = lpk::cuda::tile_count(job.sums, Part::Map::kLanes);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (Part::kExact && done_before(job, Part::Map::kLanes, tile)) continue;
    std::vector<Part> parts;
    parts.reserve(Part::Map::kThreads);
    for (int t = 0; t < Part::Map::kThreads; ++t) parts.emplace_back(job, tile, t);
    HostBlock<Part> block(&parts, shared.get(), tile % 2 == 0);
    lpk::cuda::run_tile(typename Part::Stage(job), block);
  }
}

template <lpk::Rounding kMode>
void run_exact_mode(const Job& job) {
  if (job.acc.has_product) return run_tiles<lpk::cuda::ExactTile<2, kMode, true>>(job);
  run_tiles<lpk::cuda::ExactTile<4, kMode, false>>(job);
}

// Runs all blocks of a certified kernel, the last one first: none may depend on another.
template <class Tile>
void run_reported(const Job& job) {
  const auto shared = std::make_unique<typename Tile::Shared>();
  const auto pieces = static_cast<int32_t>(job.cut.tiles * job.cut.splits);
  for (int32_t number = pieces - 1; number >= 0; --number) {
    const auto place = static_cast<int32_t>(number % lpk::cuda::kMostBlocks);
    lpk::cuda::Work work{*job.plan, 0, 0, 0, 0, 0};
    lpk::cuda::begin_work(job, number, place, &work);
    std::vector<Tile> parts;
    parts.reserve(Tile::Map::kThreads);
    for (int t = 0; t < Tile::Map::kThreads; ++t) parts.emplace_back(job, work, t);
    HostBlock<Tile> block(&parts, shared.get(), number % 2 == 0);
    lpk::cuda::run_tile(typename Tile::Stage(job, work), block);
    parts[0].report(shared.get());
  }
}

template <template <bool, bool> class Tile>
void run_layouts(const Job& job) {
  const bool tables = lpk::cuda::reads_tables(job.sums);
  if (tables && job.acc.chunk > 0) return run_reported<Tile<true, true>>(job);
  if (tables) return run_reported<Tile<true, false>>(job);
  if (job.acc.chunk > 0) return run_reported<Tile<false, true>>(job);
  run_reported<Tile<false, false>>(job);
}

template <class Rule>
struct Ruled {
  template <bool kTables, bool kChunked>
  using Tile = lpk::cuda::CertifiedTile<Rule, kTables, kChunked>;
};
template <class Rule>
void run_rule(const Job& job) {
  run_layouts<Ruled<Rule>::template Tile>(job);
}

// Runs a rule that has tiles of every shape.
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

// The same for tiers that always look elements up in tiles that are not square.
template <class Rule>
void run_rare_shapes(const Job& job) {
  if (lpk::cuda::is_square(job.cut)) return run_rule<Rule>(job);
  lpk::cuda::with_shape(job.cut, [&](auto rows, auto cols) {
    constexpr int kRows = decltype(rows)::value, kCols = decltype(cols)::value;
    run_reported<lpk::cuda::TileOfShape<Rule, true, kRows, kCols>>(job);
  });
}

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
  run_shapes<HardwareRule<lpk::Rounding::kNearestEven>>(job);
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

void run_tier(const Job& job) {
  using lpk::cuda::FloorRule;
  using lpk::cuda::NearestSum;
  using lpk::cuda::OddSum;
  using lpk::cuda::SplitRule;
  using lpk::cuda::TwoStepRule;
  switch (job.plan->tier) {
    case Tier::kExact:
      return;
    case Tier::kTwoStep:
      return run_shapes<TwoStepRule<NearestSum, Limit::kProved>>(job);
    case Tier::kTwoStepWatched:
      return run_shapes<TwoStepRule<NearestSum, Limit::kWatched>>(job);
    case Tier::kTwoStepClipped:
      return run_rule<TwoStepRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kTwoStepOdd:
      return run_rare_shapes<TwoStepRule<OddSum, Limit::kWatched>>(job);
    case Tier::kSplit:
      return run_shapes<SplitRule<NearestSum, Limit::kProved>>(job);
    case Tier::kSplitWatched:
      return run_shapes<SplitRule<NearestSum, Limit::kWatched>>(job);
    case Tier::kSplitClipped:
      return run_rule<SplitRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kSplitOdd:
      return run_rare_shapes<SplitRule<OddSum, Limit::kWatched>>(job);
    case Tier::kFloor:
      return run_shapes<FloorRule<NearestSum, Limit::kProved>>(job);
    case Tier::kFloorWatched:
      return run_shapes<FloorRule<NearestSum, Limit::kWatched>>(job);
    case Tier::kFloorClipped:
      return run_rule<FloorRule<NearestSum, Limit::kClipped>>(job);
    case Tier::kFloorOdd:
      return run_rare_shapes<FloorRule<OddSum, Limit::kWatched>>(job);
    case Tier::kTruncated:
      return run_rule<lpk::cuda::TruncationRule>(job);
    case Tier::kStochastic:
      return run_layouts<lpk::cuda::StochasticTile>(job);
    case Tier::kDoubleSplit:
      return run_rare_shapes<lpk::cuda::DoubleSplitRule>(job);
    case Tier::kDoubleFloor:
      return run_rare_shapes<lpk::cuda::DoubleFloorRule>(job);
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

template <template <bool> class Tile>
void run_order(const Job& job) {
  if (lpk::cuda::sums_to_nearest(job.acc)) return run_tiles<Tile<true>>(job);
  run_tiles<Tile<false>>(job);
}

void run_operand_blocks(const Job& job) {
  using lpk::cuda::OperandTile;
  if (job.acc.interleaved > 1) return run_tiles<OperandTile<double, true>>(job);
  if (lpk::cuda::single_certified(job)) return run_tiles<OperandTile<float, false>>(job);
  run_tiles<OperandTile<double, false>>(job);
}

void run_ordered(const Job& job) {
  if (job.acc.order == lpk::Order::kPairwise) return run_order<lpk::cuda::TreeTile>(job);
  if (job.acc.order == lpk::Order::kCompensated) return run_order<lpk::cuda::CompensatedTile>(job);
  if (job.acc.by_operands) return run_operand_blocks(job);
  run_order<lpk::cuda::AlignedTile>(job);
}

// Visits every output of the exact kernel's tiles, the last tile first.
template <class Visit>
void each_output(const Job& job, const Visit& visit) {
  const int side = lpk::cuda::exact_side(job.acc);
  for (int64_t tile = lpk::cuda::tile_count(job.sums, side) - 1; tile >= 0; --tile) {
    for (int n = 0; n < side * side; ++n) {
      const lpk::cuda::Place at = lpk::cuda::output_of(job, side, tile, n);
      if (lpk::cuda::is_output(job.sums, at)) visit(tile, at);
    }
  }
}

// Does what the last kernel does before exact tiles.
void run_last(const Job& job) {
  const lpk::cuda::Cut& cut = lpk::cuda::planned_cut(job);
  if (cut.splits > 1) {
    each_output(job, [&](int64_t tile, const lpk::cuda::Place& at) {
      if (lpk::cuda::add_parts(job, at)) ++job.arrived[tile];
    });
  } else if (lpk::cuda::finishes(job)) {
    each_output(job,
                [&](int64_t, const lpk::cuda::Place& at) { lpk::cuda::finish_output(job, at); });
  }
}

}  // namespace

void run_exact(const Job& job) {
  switch (job.acc.rounding) {
    case lpk::Rounding::kNearestEven:
      return run_exact_mode<lpk::Rounding::kNearestEven>(job);
    case lpk::Rounding::kNearestAway:
      return run_exact_mode<lpk::Rounding::kNearestAway>(job);
    case lpk::Rounding::kTowardZero:
      return run_exact_mode<lpk::Rounding::kTowardZero>(job);
    case lpk::Rounding::kTowardPositive:
      return run_exact_mode<lpk::Rounding::kTowardPositive>(job);
    case lpk::Rounding::kTowardNegative:
      return run_exact_mode<lpk::Rounding::kTowardNegative>(job);
    case lpk::Rounding::kToOdd:
      return run_exact_mode<lpk::Rounding::kToOdd>(job);
    case lpk::Rounding::kStochastic:
      return run_exact_mode<lpk::Rounding::kStochastic>(job);
  }
}

Ran run_product(Job* job, void* scratch) {
  lpk::cuda::begin_scratch(job, scratch);
  if (job->plan == nullptr) {
    job->acc.has_running_sum() ? run_exact(*job) : run_ordered(*job);
    return {Tier::kExact, false, {}};
  }
  *job->plan = lpk::cuda::plan_for(*job);
  std::fill(job->arrived, job->arrived + job->counted, uint32_t{0});
  const lpk::cuda::Cut& cut = lpk::cuda::planned_cut(*job);
  const bool certified = job->plan->tier != Tier::kExact;
  for (job->pass = 0; certified && job->pass < cut.passes; ++job->pass) {
    run_tier(lpk::cuda::with_cut(*job, cut));
    run_last(lpk::cuda::last_job(*job));
  }
  bool kept = false;
  const int side = lpk::cuda::exact_side(job->acc);
  for (int64_t tile = lpk::cuda::tile_count(job->sums, side) - 1; tile >= 0; --tile)
    kept = kept || done_before(*job, side, tile);
  run_exact(lpk::cuda::last_job(*job));
  return {job->plan->tier, !kept, cut};
}

std::vector<SharedAccess> shared_accesses(const std::function<void()>& run) {
  watch = Watch{};
  lpk::cuda::watch_shared = see;
  run();
  lpk::cuda::watch_shared = nullptr;
  return std::move(watch.seen);
}

Ran run_product(Job* job) {
  // Every word holds garbage: NaN as a float.
  const int64_t bytes = lpk::cuda::scratch_size(*job);
  std::vector<uint64_t> scratch(static_cast<size_t>(bytes + 7) / 8, ~uint64_t{0});
  const Ran ran = run_product(job, scratch.data());
  job->plan = nullptr;
  return ran;
}

}  // namespace lpk_test
