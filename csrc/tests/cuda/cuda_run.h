// The kernels of a product as csrc/cuda starts them, on the host.
#pragma once

#include <functional>
#include <vector>

#include "cuda/product/plan.h"

namespace lpk_host {

using lpk::cuda::Job;
using lpk::cuda::Tier;

// Runs all tiles by the exact kernel, except those that a certified kernel did.
void run_exact(const Job& job);

// Runs the whole product. Returns the tier that the plan chose, and whether every tile was done
// again.
struct Ran {
  Tier tier;
  bool redone;
};
// `scratch` has scratch_size bytes and is aligned for any type.
Ran run_product(Job* job, void* scratch);
Ran run_product(Job* job);

// One read or write of shared memory by a thread of a block. `phase` numbers the stretches between
// two barriers, those of all blocks in turn.
struct SharedAccess {
  int64_t phase;
  int thread, bytes;
  uintptr_t at;  // counted from where the block's shared memory begins
};
// The accesses of all kernels that `run` starts.
std::vector<SharedAccess> shared_accesses(const std::function<void()>& run);

}  // namespace lpk_host
