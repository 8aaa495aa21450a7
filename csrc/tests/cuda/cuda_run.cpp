// The kernels of a product on the host, as csrc/cuda starts them.
#include "cuda_run.h"

#include <memory>
#include <vector>

#include "cuda/product/done.h"
#include "cuda/product/job.h"
#include "cuda/tiles/exact_tile.h"
#include "cuda_host_block.h"

namespace lpk_host {

Watch watch;

namespace {

void see(const void* at, int bytes) {
  const auto place = reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(watch.shared);
  watch.seen.push_back({watch.phase, watch.thread, bytes, place});
}

// Whether certified kernels did a tile of the exact kernel for good.
bool done_before(const Job& job, int64_t side, int64_t tile) {
  if (job.plan == nullptr || job.plan->tier == Tier::kExact) return false;
  return !lpk::cuda::flagged(job, side, tile);
}

// Runs all tiles of a product, one after another, except those that certified kernels did.
template <class Part>
void run_tiles(const lpk::cuda::Job& job) {
  const auto shared = std::make_unique<typename Part::Shared>();
  const int64_t tiles = lpk::cuda::tile_count(job.sums, Part::Map::kLanes);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (done_before(job, Part::Map::kLanes, tile)) continue;
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

// Does the work of the last kernel before exact tiles, the last tile first.
void run_last(const Job& job) {
  if (!lpk::cuda::finishes(job)) return;
  const int side = lpk::cuda::exact_side(job.acc);
  for (int64_t tile = lpk::cuda::tile_count(job.sums, side) - 1; tile >= 0; --tile) {
    for (int n = 0; n < side * side; ++n) {
      const lpk::cuda::Place at = lpk::cuda::output_of(job, side, tile, n);
      if (lpk::cuda::is_output(job.sums, at)) lpk::cuda::finish_output(job, at);
    }
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
    run_exact(*job);
    return {Tier::kExact, false};
  }
  *job->plan = lpk::cuda::plan_for(*job);
  if (job->plan->tier != Tier::kExact) {
    run_tier(*job);
    run_last(*job);
  }
  bool done = false;
  const int side = lpk::cuda::exact_side(job->acc);
  for (int64_t tile = lpk::cuda::tile_count(job->sums, side) - 1; tile >= 0; --tile)
    done = done || done_before(*job, side, tile);
  run_exact(*job);
  return {job->plan->tier, !done};
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
  const int64_t bytes = lpk::cuda::scratch_size(job->sums, job->acc);
  std::vector<uint64_t> scratch(static_cast<size_t>(bytes + 7) / 8, ~uint64_t{0});
  const Ran ran = run_product(job, scratch.data());
  job->plan = nullptr;
  return ran;
}

}  // namespace lpk_host
