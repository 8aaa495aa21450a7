// An optimizer's step of a parameter in one pass, by common/update_element.h, element by element.
//
// Thread t of the grid handles elements t, t + T, t + 2T, ... in row-major order, where T is the
// number of all threads. The first threads of a block make what all of its elements share: the
// constants of the step, from the count of steps, and the seeds. Where the flag is up, nothing is
// written. Values are widened to double for rounding and codes, as in quantize.cu; the step itself
// is float32. This file must be compiled with -fmad=false, without -use_fast_math and -ftz=true.
#include "elements.h"
#include "update.h"

namespace lpk::cuda {
namespace {

__device__ void add_count(int64_t mine, int64_t* total) {
  const unsigned sum = __reduce_add_sync(0xffffffffu, static_cast<unsigned>(mine));
  if (threadIdx.x % 32 == 0 && sum != 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(total), static_cast<unsigned long long>(sum));
}

__global__ void update_kernel(const __grid_constant__ UpdateJob job) {
  __shared__ StepConstants constants;
  __shared__ uint64_t seeds[kPlaces];
  if (job.found != nullptr && *job.found) return;
  if (threadIdx.x < kPlaces) seeds[threadIdx.x] = job.seed_of(static_cast<int>(threadIdx.x));
  if (threadIdx.x == kPlaces) constants = job.constants();
  __syncthreads();
  int64_t asked = 0, unchanged = 0;
  for (int64_t i = grid_thread(); i < job.count; i += grid_threads())
    update_element(job, constants, seeds, i, &asked, &unchanged);
  add_count(asked, &job.counts[0]);
  add_count(unchanged, &job.counts[1]);
}

}  // namespace

void update(const UpdateArgs& args, void* stream) {
  for (int64_t p = 0; p < args.count; ++p) {
    const UpdateJob job(args, args.parameters[p]);
    if (job.count == 0) continue;
    update_kernel<<<element_blocks(job.count), kElementThreads, 0,
                    static_cast<cudaStream_t>(stream)>>>(job);
    check_launch("update");
  }
}

}  // namespace lpk::cuda
