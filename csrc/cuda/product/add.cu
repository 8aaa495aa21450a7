// total <- round(total + addend) in the accumulator's outer format, element by element. These are
// the additions that the contract covers where a library makes the sums of chunks.
//
// Thread t of the grid handles elements t, t + T, t + 2T, ... in row-major order, where T is the
// number of all threads.
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>

#include "tiles.h"
#include "totals.h"

namespace lpk::cuda {

void check_launch(const char* what);

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

__global__ void add_kernel(const __grid_constant__ AddArgs args,
                           const __grid_constant__ Accumulator acc) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = first; i < args.rows * args.cols; i += step) args.total[i] = added(args, acc, i);
}

}  // namespace

void add(const AddArgs& args, const int64_t* accumulator, void* stream) {
  const int64_t count = args.rows * args.cols;
  if (count == 0) return;
  const int64_t blocks = std::min(kMaxBlocks, ceil_div(count, kThreads));
  add_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      args, accumulator_from(accumulator));
  check_launch("accumulate");
}

}  // namespace lpk::cuda
