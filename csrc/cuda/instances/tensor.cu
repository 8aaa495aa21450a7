// Native chunks on tensor cores: operands to 16 bits first.
#include "cuda/elementwise/elements.h"
#include "cuda/tiles/shapes.h"
#include "cuda/tiles/tensor_tile.h"
#include "fast.h"

namespace lpk::cuda {
namespace {

// Eight values at a time; `to` is aligned for them.
template <bool kBfloat16>
__global__ void halves_kernel(const Plan* plan, const float* from, int64_t size, uint16_t* to) {
  if (plan->tier != (kBfloat16 ? Tier::kTensorBfloat16 : Tier::kTensorHalf)) return;
  for (int64_t first = 8 * grid_thread(); first < size; first += 8 * grid_threads()) {
    uint16_t halves[8];
    for (int n = 0; n < 8; ++n)
      halves[n] = first + n < size ? half_value<kBfloat16>(from[first + n]) : uint16_t{0};
    write_shared<8>(to + first, halves);
  }
}

template <bool kBfloat16>
void launch_halves(const Job& job, const Operand& operand, uint16_t* to, cudaStream_t stream) {
  halves_kernel<kBfloat16>
      <<<element_blocks(ceil_div(operand.size, 8)), kElementThreads, 0, stream>>>(
          job.plan, operand.values, operand.size, to);
  check_launch("the operands of tensor cores");
}

template <bool kBfloat16, Tier kTier>
void launch_type(const Job& job, cudaStream_t stream) {
  if (job.pass == 0) {
    launch_halves<kBfloat16>(job, job.sums.left, job.left_halves, stream);
    launch_halves<kBfloat16>(job, job.sums.right, job.right_halves, stream);
  }
  with_tensor_shape(job.cut, [&](auto rows, auto cols) {
    constexpr int kRows = decltype(rows)::value, kCols = decltype(cols)::value;
    if (reads_tables(job.sums))
      return launch_tiles<TensorTile<kBfloat16, true, kRows, kCols>, kTier>(job, stream);
    launch_tiles<TensorTile<kBfloat16, false, kRows, kCols>, kTier>(job, stream);
  });
}

}  // namespace

void launch_tensor(const Job& job, cudaStream_t stream) {
  launch_type<false, Tier::kTensorHalf>(job, stream);
  launch_type<true, Tier::kTensorBfloat16>(job, stream);
}

}  // namespace lpk::cuda
