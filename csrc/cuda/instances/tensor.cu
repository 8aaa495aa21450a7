// Native chunks on tensor cores. The operands become 16 bits wide first.
#include "certified.h"
#include "cuda/elementwise/elements.h"
#include "cuda/tiles/tensor_tile.h"

namespace lpk::cuda {
namespace {

// Writes eight values at a time; `to` is aligned for them.
template <bool kBfloat16>
__device__ __forceinline__ void write_halves(const Operand& from, uint16_t* to) {
  for (int64_t first = 8 * grid_thread(); first < from.size; first += 8 * grid_threads()) {
    uint16_t halves[8];
    for (int n = 0; n < 8; ++n)
      halves[n] =
          first + n < from.size ? half_value<kBfloat16>(from.values[first + n]) : uint16_t{0};
    write_shared<8>(to + first, halves);
  }
}

// Copies both operands to the type that the plan names.
__global__ void halves_kernel(const __grid_constant__ Job job) {
  __shared__ alignas(Plan) char words[sizeof(Plan)];
  auto* plan = reinterpret_cast<Plan*>(words);
  begin_product(job, plan);
  if (plan->tier == Tier::kTensorHalf) {
    write_halves<false>(job.sums.left, job.left_halves);
    write_halves<false>(job.sums.right, job.right_halves);
  } else if (plan->tier == Tier::kTensorBfloat16) {
    write_halves<true>(job.sums.left, job.left_halves);
    write_halves<true>(job.sums.right, job.right_halves);
  }
}

}  // namespace

void launch_halves(const Job& job, cudaStream_t stream) {
  const int64_t size = std::max(job.sums.left.size, job.sums.right.size);
  halves_kernel<<<element_blocks(ceil_div(size, 8)), kElementThreads, 0, stream>>>(job);
  check_launch("the operands of tensor cores");
}

void launch_tensor(const Job& job, cudaStream_t stream) {
  with_tensor_shape(job.cut, [&](auto rows, auto cols) {
    constexpr int kRows = decltype(rows)::value, kCols = decltype(cols)::value;
    with_tables(job, [&](auto tables) {
      constexpr bool kTables = decltype(tables)::value;
      launch_kernel<Made<Tier::kTensorHalf, TensorTile<false, kTables, kRows, kCols>>,
                    Made<Tier::kTensorBfloat16, TensorTile<true, kTables, kRows, kCols>>>(job,
                                                                                          stream);
    });
  });
}

}  // namespace lpk::cuda
