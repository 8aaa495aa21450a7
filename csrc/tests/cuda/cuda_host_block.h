// Blocks of CUDA threads on the host, which do the phases of cuda/product/tiles.h thread after
// thread.
#pragma once

#include <memory>
#include <vector>

#include "cuda/tiles/certified_tile.h"
#include "cuda_run.h"

namespace lpk_host {

// The accesses that watch_shared writes down, and their thread.
struct Watch {
  std::vector<SharedAccess> seen;
  int64_t phase = 0;
  int thread = 0;
  const void* shared = nullptr;
};
extern Watch watch;

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

// Runs all blocks of a certified kernel, the last one first: none may depend on another.
template <class Tile>
void run_reported(const Job& job) {
  const auto shared = std::make_unique<typename Tile::Shared>();
  for (auto number = static_cast<int32_t>(job.tiles - 1); number >= 0; --number) {
    const auto place = static_cast<int32_t>(number % lpk::cuda::kMostBlocks);
    const lpk::cuda::Work work{*job.plan, number, place};
    std::vector<Tile> parts;
    parts.reserve(Tile::Map::kThreads);
    for (int t = 0; t < Tile::Map::kThreads; ++t) parts.emplace_back(job, work, t);
    HostBlock<Tile> block(&parts, shared.get(), number % 2 == 0);
    lpk::cuda::run_tile(typename Tile::Stage(job), block);
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

// The same for tiers that are seldom asked for, which look all elements up.
template <class Rule>
void run_rare(const Job& job) {
  if (job.acc.chunk > 0) return run_reported<lpk::cuda::CertifiedTile<Rule, true, true>>(job);
  run_reported<lpk::cuda::CertifiedTile<Rule, true, false>>(job);
}

// Runs the certified kernel of the plan's tier.
void run_tier(const Job& job);

}  // namespace lpk_host
