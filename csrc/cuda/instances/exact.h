// The kernels of exact_tile.h, in several translation units by mode, which compile side by side.
#pragma once

#include <cuda_runtime.h>

#include "cuda/product/done.h"
#include "cuda/tiles/exact_tile.h"

namespace lpk::cuda {

// Checks the last launch: throws std::runtime_error that names `what`.
void check_launch(const char* what);

// How many blocks a processor must hold: fewer where a block needs more than 128 registers a
// thread.
template <Rounding kMode, bool kRounds>
constexpr int kExactBlocks = kMode != Rounding::kStochastic && !kRounds ? 2 : 1;

// The last kernel of a product, and the only one where no plan is given. A block owns one tile of
// 16 kSide x 16 kSide outputs and all of their steps. Where a plan is given, this kernel does only
// the work that the certified kernels left (done.h).
template <int kSide, Rounding kMode, bool kRounds>
__global__ void __launch_bounds__(256, (kExactBlocks<kMode, kRounds>))
    exact_kernel(const __grid_constant__ Job job, int64_t first_block) {
  using Tile = ExactTile<kSide, kMode, kRounds>;
  using Map = typename Tile::Map;
  __shared__ typename Tile::Shared shared;
  const int slices = job.counted > 0 ? kSide * kSide : 1;
  const int64_t block_number = first_block + blockIdx.x;
  const int64_t tile = block_number / slices;
  const auto slice = static_cast<int>(block_number % slices);
  if (!must_redo<Map::kLanes, Map::kThreads>(job, tile, slice, reinterpret_cast<int*>(&shared)))
    return;

  Tile part(job, tile, threadIdx.x);
  DeviceBlock<Tile> block(&part, &shared);
  run_tile(Stages(job), block);
}

template <int kSide, Rounding kMode, bool kRounds>
void launch_exact_kernel(const Job& job, cudaStream_t stream) {
  using Map = BlockMap<kSide, 2>;
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t blocks = tile_count(job.sums, Map::kLanes) * (job.counted > 0 ? kSide * kSide : 1);
  for (int64_t first = 0; first < blocks; first += kMost) {
    const int64_t count = blocks - first < kMost ? blocks - first : kMost;
    exact_kernel<kSide, kMode, kRounds>
        <<<static_cast<unsigned>(count), Map::kThreads, 0, stream>>>(job, first);
    check_launch("the last kernel of a product");
  }
}

// Rounded products cost more registers and code, so a thread has fewer outputs.
template <Rounding kMode>
void launch_exact_mode(const Job& job, cudaStream_t stream) {
  if (job.acc.has_product) return launch_exact_kernel<2, kMode, true>(job, stream);
  launch_exact_kernel<4, kMode, false>(job, stream);
}

// These are in exact_nearest.cu, exact_directed.cu and exact_stochastic.cu.
void launch_exact_nearest(const Job& job, cudaStream_t stream);
void launch_exact_directed(const Job& job, cudaStream_t stream);
void launch_exact_stochastic(const Job& job, cudaStream_t stream);

}  // namespace lpk::cuda
