// A product from its arguments to its kernels. Three kernels or fewer start one after another on
// one stream:
//
//   certified    the kernels of the accumulator's tiers, one for each class of registers that the
//                tiers need; the first makes the plan, which names the tier that the packed
//                operands allow, and the kernels that do not have this tier return at once
//   the last     the kernel that does the rest: it applies bias and result quantizer, and makes the
//                tiles that were flagged, or all tiles where nothing is certified
#include <cuda_runtime.h>

#include "cuda/instances/launch.h"
#include "job.h"

namespace lpk::cuda {
namespace {

int asked(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  check_launch("asking the device what it is");
  return value;
}

bool adds_doubles_fast() { return asked(cudaDevAttrSingleToDoublePrecisionPerfRatio) <= 2; }

// Starts the certified kernels, of all tiers that a plan may choose for this accumulator.
void launch_certified(Job* job, cudaStream_t stream) {
  const auto start = [&](const auto& launch) {
    launch(*job, stream);
    job->plans = false;
  };
  const Accumulator& acc = job->acc;
  if (is_float32(acc.fmt)) return start(launch_float32);
  if (acc.rounding == Rounding::kStochastic) return start(launch_stochastic);
  if (acc.rounding != Rounding::kNearestEven) return start(launch_truncated);
  if (has_float_tiers(acc)) start(launch_nearest);
  start(launch_rare);
}

}  // namespace

int64_t scratch_bytes(const Sums& sums, const int64_t* accumulator) {
  return scratch_size(sums, accumulator_from(accumulator));
}

void multiply(const MultiplyArgs& args, void* stream) {
  Job job = job_from(args);
  if (args.sums.count == 0 || args.sums.m == 0 || args.sums.n == 0) return;
  const auto queue = static_cast<cudaStream_t>(stream);
  job.fast_doubles = adds_doubles_fast();
  begin_scratch(&job, args.scratch);
  if (job.plan != nullptr) {
    job.plans = true;
    launch_certified(&job, queue);
  }
  launch_exact(job, queue);
}

}  // namespace lpk::cuda
