// Beside its tiles, the first kernel of a product makes the plan and clears the counters of the
// kernels after it.
#pragma once

#include "plan.h"

namespace lpk::cuda {

#if defined(__CUDACC__)
// Gives all threads of a block the plan, in shared memory. Every block of the first kernel makes
// the plan for itself, so that no kernel has to be started for it alone, and the first block leaves
// it for the other kernels.
__device__ __forceinline__ void begin_product(const Job& job, Plan* shared) {
  // The last thread does this: whether a thread is the first would stay in a register through all
  // tiles.
  if (threadIdx.x == blockDim.x - 1) {
    *shared = job.plans ? plan_for(job) : *job.plan;
    if (job.plans && blockIdx.x == 0) *job.plan = *shared;
  }
  if (job.plans) {
    const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t tile = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         tile < job.counted; tile += threads)
      job.arrived[tile] = 0;
  }
  __syncthreads();
}
#endif

}  // namespace lpk::cuda
