// A product from its arguments to its kernels, started one after another on one stream:
//
//   the plan     one thread: which certified kernel the packed operands allow
//   certified    the kernels that the accumulator may take; all but the planned one return at once
//   the parts    where sums are split: their chunks added in order, bias and result quantizer
//   the finish   where they are not, bias and result quantizer of what the certified kernel made
//   the exact    tiles that were flagged, or all of them where nothing is certified
//
// Sums in other orders have exact kernels alone.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/instances/fast.h"
#include "cuda/instances/ordered.h"
#include "cuda/instances/wide.h"
#include "job.h"

namespace lpk::cuda {
namespace {

constexpr int kThreads = 256;

// One block. Of split sums any of several blocks may flag a tile.
__global__ void plan_kernel(const __grid_constant__ Job job, Plan* plan) {
  if (threadIdx.x == 0) *plan = plan_for(job);
  // Both cuts may be the planned one.
  const int64_t squares = job.squares.splits > 1 ? job.squares.tiles : 0;
  const int64_t shaped = job.shaped.splits > 1 ? job.shaped.tiles : 0;
  const int64_t tiles = squares > shaped ? squares : shaped;
  for (int64_t tile = threadIdx.x; tile < tiles; tile += kThreads) job.redo[tile] = 0;
}

// A thread an output: few to a block, because split sums are long and few.
constexpr int kPartThreads = 64;

__global__ void parts_kernel(const __grid_constant__ Job job, int64_t first_block) {
  if (job.plan->tier == Tier::kWide) return;
  const Cut& cut = planned_cut(job);
  if (cut.splits == 1 || job.pass >= cut.passes) return;
  const int64_t output = (first_block + blockIdx.x) * kPartThreads + threadIdx.x;
  if (output < job.sums.count * job.sums.m * job.sums.n) add_parts(job, output);
}

void launch_parts(const Job& job, cudaStream_t stream) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t blocks = ceil_div(job.sums.count * job.sums.m * job.sums.n, kPartThreads);
  for (int64_t first = 0; first < blocks; first += kMost) {
    const int64_t count = blocks - first < kMost ? blocks - first : kMost;
    parts_kernel<<<static_cast<unsigned>(count), kPartThreads, 0, stream>>>(job, first);
    check_launch("the chunks of a product");
  }
}

// Blocks of kThreads outputs of one row.
__global__ void finish_kernel(const __grid_constant__ Job job, int64_t first_block) {
  if (job.plan->tier == Tier::kWide || planned_cut(job).splits > 1) return;
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
  if (job.shaped.splits > 1 && job.squares.splits > 1) return;
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

// The kernels of square tiles that some plan may ask for with this accumulator.
void launch_squares(const Job& job, cudaStream_t stream) {
  if (native_format(job.acc.fmt) == Native::kFloat) {
    launch_float32(job, stream);
  } else if (job.acc.rounding == Rounding::kNearestEven) {
    if (native_format(job.acc.fmt) != Native::kNone) launch_half(job, stream);
    if (job.acc.fmt.man_bits <= 21) {
      launch_split(job, stream);
      launch_floor(job, stream);
    }
    launch_double(job, stream);
  } else if (job.acc.rounding == Rounding::kStochastic) {
    launch_stochastic(job, stream);
  } else {
    launch_truncated(job, stream);
  }
}

// Those of tiles of several shapes, where others than the square ones do it.
void launch_shapes(const Job& job, cudaStream_t stream) {
  if (may_use_tensor_cores(job.acc)) return launch_tensor(job, stream);
  if (is_square(job.cut)) return;
  launch_shaped_split(job, stream);
  launch_shaped_floor(job, stream);
}

// What there is to do in a pass.
void launch_certified(const Job& job, cudaStream_t stream) {
  if (job.pass < job.squares.passes) launch_squares(with_cut(job, job.squares), stream);
  if (job.pass < job.shaped.passes) launch_shapes(with_cut(job, job.shaped), stream);
  if (job.squares.splits > 1 || job.shaped.splits > 1) launch_parts(job, stream);
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
  Plan* plan = begin_scratch(&job, args.scratch);
  if (!job.acc.has_running_sum()) return launch_ordered(job, queue);
  if (plan != nullptr) {
    job.fast_doubles = adds_doubles_fast();
    plan_kernel<<<1, kThreads, 0, queue>>>(job, plan);
    check_launch("the plan of a product");
    const int32_t passes = std::max(job.squares.passes, job.shaped.passes);
    for (job.pass = 0; job.pass < passes; ++job.pass) launch_certified(job, queue);
    launch_finish(job, queue);
  }
  launch_wide(job, queue);
}

}  // namespace lpk::cuda
