// The kernels of wide_tile.h, one translation unit for some modes each, to build side by side.
#pragma once

#include <cuda_runtime.h>

#include "cuda/product/done.h"
#include "cuda/tiles/wide_tile.h"

namespace lpk::cuda {

// Of the last launch: throws std::runtime_error that names `what`.
void check_launch(const char* what);

// Blocks a processor must hold; fewer where a block needs more than 128 registers a thread.
template <Rounding kMode, bool kRounds>
constexpr int kWideBlocks = kMode != Rounding::kStochastic && !kRounds ? 2 : 1;

// A block owns one tile of 16 kSide x 16 kSide outputs and all of their steps. Where a plan is
// given the certified kernels did the rest: only tiles that they left are done.
template <int kSide, Rounding kMode, bool kRounds>
__global__ void __launch_bounds__(256, (kWideBlocks<kMode, kRounds>))
    wide_kernel(const __grid_constant__ Job job, int64_t first_tile) {
  using Tile = WideTile<kSide, kMode, kRounds>;
  __shared__ typename Tile::Shared shared;
  const int64_t tile = first_tile + blockIdx.x;
  if (done_before(job, Tile::Map::kLanes, tile)) return;

  Tile part(job, tile, threadIdx.x);
  DeviceBlock<Tile> block(&part, &shared);
  run_tile(Stages(job), block);
}

template <int kSide, Rounding kMode, bool kRounds>
void launch_wide_kernel(const Job& job, cudaStream_t stream) {
  using Map = BlockMap<kSide, 2>;
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t tiles = tile_count(job.sums, Map::kLanes);
  for (int64_t first = 0; first < tiles; first += kMost) {
    const int64_t count = tiles - first < kMost ? tiles - first : kMost;
    wide_kernel<kSide, kMode, kRounds>
        <<<static_cast<unsigned>(count), Map::kThreads, 0, stream>>>(job, first);
    check_launch("the exact kernel of a product");
  }
}

// Rounded products cost more registers and code: fewer outputs a thread.
template <Rounding kMode>
void launch_wide_mode(const Job& job, cudaStream_t stream) {
  if (job.acc.has_product) return launch_wide_kernel<2, kMode, true>(job, stream);
  launch_wide_kernel<4, kMode, false>(job, stream);
}

// In wide_nearest.cu, wide_directed.cu and wide_stochastic.cu.
void launch_wide_nearest(const Job& job, cudaStream_t stream);
void launch_wide_directed(const Job& job, cudaStream_t stream);
void launch_wide_stochastic(const Job& job, cudaStream_t stream);

}  // namespace lpk::cuda
