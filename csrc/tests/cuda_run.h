// The kernels of a product as csrc/cuda starts them, on the host.
#pragma once

#include "../cuda/plan.h"

namespace lpk_test {

using lpk::cuda::Job;
using lpk::cuda::Tier;

// All tiles by the exact kernel, but for those that a certified one did.
void run_wide(const Job& job);

// The whole product. Returns the tier that the plan chose, and whether every tile was done again.
struct Ran {
  Tier tier;
  bool redone;
};
// scratch: scratch_size bytes, aligned for any type.
Ran run_product(Job* job, void* scratch);
Ran run_product(Job* job);

}  // namespace lpk_test
