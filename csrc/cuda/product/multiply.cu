// A product from its arguments to its kernels. Three kernels or fewer start one after another on
// one stream:
//
//   certified    the kernels of the accumulator's tiers, one for each class of registers that the
//                tiers need; the first makes the plan, which names the tier that the packed
//                operands allow, and the kernels that do not have this tier return at once
//   the last     the kernel that does the rest: where sums are split, it adds their chunks in
//                order; it applies bias and result quantizer; it makes the tiles that were flagged,
//                or all tiles where nothing is certified
//
// If memory has no room for all sums of chunks that wait, all this is done in several passes.
// Tensor cores get copies of their operands in 16 bits beforehand. Sums in other orders have only
// exact kernels.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/instances/certified.h"
#include "cuda/instances/exact.h"
#include "cuda/instances/ordered.h"
#include "job.h"

namespace lpk::cuda {
namespace {

void launch_exact(const Job& job, cudaStream_t stream) {
  switch (job.acc.rounding) {
    case Rounding::kNearestEven:
    case Rounding::kNearestAway:
      return launch_exact_nearest(job, stream);
    case Rounding::kStochastic:
      return launch_exact_stochastic(job, stream);
    default:
      return launch_exact_directed(job, stream);
  }
}

int asked(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  check_launch("asking the device what it is");
  return value;
}

int processors() { return asked(cudaDevAttrMultiProcessorCount); }
bool adds_doubles_fast() { return asked(cudaDevAttrSingleToDoublePrecisionPerfRatio) <= 2; }

void launch_ordered(const Job& job, cudaStream_t stream) {
  if (job.acc.order == Order::kPairwise) return launch_trees(job, stream);
  if (job.acc.order == Order::kCompensated) return launch_compensated(job, stream);
  if (job.acc.by_operands) return launch_operand_blocks(job, stream);
  launch_aligned(job, stream);
}

// Starts the kernel of rare tiers with tiles of the shape of job.cut.
void launch_rare(const Job& job, cudaStream_t stream) {
  const int least = std::min(job.cut.rows, job.cut.cols);
  if (is_square(job.cut)) return launch_rare_chunks(job, stream);
  if (least == 1) return launch_rare_direct(job, stream);
  if (least == 64) return launch_rare_64(job, stream);
  return least == 32 ? launch_rare_32(job, stream) : launch_rare_16(job, stream);
}

// Starts the certified kernels of a pass, of all tiers that a plan may choose for this accumulator.
void launch_certified(Job* job, cudaStream_t stream) {
  const auto start = [&](const Cut& cut, const auto& launch) {
    if (job->pass >= cut.passes) return;
    launch(with_cut(*job, cut), stream);
    job->plans = false;
  };
  const Accumulator& acc = job->acc;
  if (may_use_tensor_cores(acc)) {
    if (job->pass == 0) start(job->shaped, launch_halves);
    start(job->shaped, launch_tensor);
  }
  const Cut& others = job->others;
  const bool square = is_square(others);
  if (hardware_format(acc.fmt) == Hardware::kFloat)
    return start(others, square ? launch_float32 : launch_shaped_float32);
  if (acc.rounding == Rounding::kStochastic) return start(others, launch_stochastic);
  if (acc.rounding != Rounding::kNearestEven) return start(others, launch_truncated);
  if (acc.chunk == 0) {
    if (has_float_tiers(acc)) start(others, launch_nearest);
    return start(others, launch_double);
  }
  if (has_float_tiers(acc)) start(job->shaped, launch_nearest_chunks);
  start(others, launch_rare);
}

}  // namespace

int64_t scratch_bytes(const Sums& sums, const int64_t* accumulator) {
  return scratch_size(job_for_scratch(sums, accumulator, processors()));
}

void multiply(const MultiplyArgs& args, void* stream) {
  Job job = job_from(args);
  if (args.sums.count == 0 || args.sums.m == 0 || args.sums.n == 0) return;
  const auto queue = static_cast<cudaStream_t>(stream);
  job.processors = processors();
  job.fast_doubles = adds_doubles_fast();
  begin_scratch(&job, args.scratch);
  if (!job.acc.has_running_sum()) return launch_ordered(job, queue);
  if (job.plan == nullptr) return launch_exact(job, queue);
  job.plans = true;
  const int32_t passes = std::max(job.others.passes, job.shaped.passes);
  for (job.pass = 0; job.pass < passes; ++job.pass) {
    launch_certified(&job, queue);
    launch_exact(last_job(job), queue);
  }
}

}  // namespace lpk::cuda
