// A product from its arguments to its kernels, started one after another on one stream:
//
//   the plan     one thread: which certified kernel the packed operands allow
//   certified    the kernels that the accumulator may take; all but the planned one return at once
//   the finish   bias and result quantizer of what the certified kernel made
//   the exact    tiles that were flagged, or all of them where nothing is certified
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "fast.h"
#include "wide.h"

namespace lpk::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void plan_kernel(const __grid_constant__ Job job, Plan* plan) {
  *plan = plan_for(job.acc, job.sums, *job.sums.left.facts, *job.sums.right.facts);
}

// Blocks of kThreads outputs of one row.
__global__ void finish_kernel(const __grid_constant__ Job job, int64_t first_block) {
  if (job.plan->tier == Tier::kWide) return;
  const Sums& s = job.sums;
  const int64_t block = first_block + blockIdx.x;
  const int64_t across = ceil_div(s.n, kThreads);
  const int64_t col = block % across * kThreads + threadIdx.x;
  const int64_t row = block / across % s.m;
  const int64_t matrix = block / across / s.m;
  if (col >= s.n) return;
  float* out = s.out + s.batch[matrix] + s.rows[row] + s.cols[col];
  *out = finished(job, *out, static_cast<uint64_t>(s.row_batch[matrix] + s.row_keys[row]),
                  static_cast<uint64_t>(s.col_batch[matrix] + s.col_keys[col]));
}

void launch_finish(const Job& job, cudaStream_t stream) {
  if (job.sums.bias == nullptr && !job.result.given) return;
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t blocks = job.sums.count * job.sums.m * ceil_div(job.sums.n, kThreads);
  for (int64_t first = 0; first < blocks; first += kMost) {
    const int64_t count = blocks - first < kMost ? blocks - first : kMost;
    finish_kernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(job, first);
    check_launch("the finish of a product");
  }
}

void launch_wide(const Job& job, cudaStream_t stream) {
  switch (job.acc.rounding) {
    case Rounding::kNearestEven:
    case Rounding::kNearestAway:
      return launch_wide_nearest(job, stream);
    case Rounding::kStochastic:
      return launch_wide_stochastic(job, stream);
    default:
      return launch_wide_directed(job, stream);
  }
}

// The kernels that some plan may ask for with this accumulator.
void launch_certified(const Job& job, cudaStream_t stream) {
  if (native_format(job.acc.fmt) == Native::kFloat) {
    launch_float32(job, stream);
  } else if (job.acc.rounding == Rounding::kNearestEven) {
    if (native_format(job.acc.fmt) != Native::kNone) launch_half(job, stream);
    launch_split(job, stream);
    launch_floor(job, stream);
  } else if (job.acc.rounding == Rounding::kStochastic) {
    launch_stochastic(job, stream);
  } else {
    launch_truncated(job, stream);
  }
}

struct Scratch {
  int64_t redo, outer, bytes;
};

// The plan first, then a byte for every certified tile, then the outer sums of chunks.
Scratch scratch_of(const Sums& s, const Accumulator& acc) {
  constexpr int64_t kLine = 256;
  const int64_t tiles = tile_count(s, kTile);
  const int64_t outer = kLine + ceil_div(tiles, kLine) * kLine;
  const int64_t sums = acc.chunk > 0 ? tiles * kTile * kTile : 0;
  return {kLine, outer, outer + sums * static_cast<int64_t>(sizeof(float))};
}

Job job_from(const MultiplyArgs& args) {
  Job job{};
  job.sums = args.sums;
  job.acc = accumulator_from(args.accumulator);
  if (args.result != nullptr) {
    job.result = {number_format(args.result), static_cast<Rounding>(args.result[kFormatInts]),
                  true};
  }
  job.seed = args.draws.seed;
  job.device_seed = args.draws.device_seed;
  job.role = args.draws.role;
  if (!job.acc.in_sequence()) {
    throw std::invalid_argument("the CUDA kernels add in sequence or in chunks only");
  }
  if (args.sums.k > kMostSteps) {
    throw std::invalid_argument("the CUDA kernels take sums of at most 2^31 - 16 products, got " +
                                std::to_string(args.sums.k));
  }
  begin_chunks(&job);
  return job;
}

}  // namespace

int64_t scratch_bytes(const Sums& sums, const int64_t* accumulator) {
  const Accumulator acc = accumulator_from(accumulator);
  return may_certify(acc) ? scratch_of(sums, acc).bytes : 0;
}

void multiply(const MultiplyArgs& args, void* stream) {
  Job job = job_from(args);
  if (args.sums.count == 0 || args.sums.m == 0 || args.sums.n == 0) return;
  const auto queue = static_cast<cudaStream_t>(stream);
  if (may_certify(job.acc) && job.chunks > 0) {
    const Scratch scratch = scratch_of(job.sums, job.acc);
    char* at = static_cast<char*>(args.scratch);
    Plan* plan = reinterpret_cast<Plan*>(at);
    job.plan = plan;
    job.redo = reinterpret_cast<uint8_t*>(at + scratch.redo);
    job.outer = reinterpret_cast<float*>(at + scratch.outer);
    plan_kernel<<<1, 1, 0, queue>>>(job, plan);
    check_launch("the plan of a product");
    launch_certified(job, queue);
    launch_finish(job, queue);
  }
  launch_wide(job, queue);
}

}  // namespace lpk::cuda
