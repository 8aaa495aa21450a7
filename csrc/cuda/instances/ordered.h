// The kernels of sums in other orders. Each has a translation unit of its own: these compile side
// by side.
#pragma once

#include <cuda_runtime.h>

#include "cuda/tiles/tree_tile.h"

namespace lpk::cuda {

// Checks the last launch: throws std::runtime_error that names `what`.
void check_launch(const char* what);

// A block makes tiles of 32 x 32 outputs in turn; tile t belongs to block t % kTreeBlocks.
template <class Tile>
__global__ void __launch_bounds__(256, Tile::kBlocks)
    ordered_kernel(const __grid_constant__ Job job) {
  __shared__ typename Tile::Shared shared;
  const int64_t tiles = tile_count(job.sums, Tile::Map::kLanes);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += kTreeBlocks) {
    Tile part(job, tile, threadIdx.x);
    DeviceBlock<Tile> block(&part, &shared);
    run_tile(typename Tile::Stage(job), block);
  }
}

template <class Tile>
void launch_ordered_tiles(const Job& job, cudaStream_t stream) {
  const int64_t tiles = tile_count(job.sums, Tile::Map::kLanes);
  const int64_t blocks = tiles < kTreeBlocks ? tiles : kTreeBlocks;
  ordered_kernel<Tile><<<static_cast<unsigned>(blocks), Tile::Map::kThreads, 0, stream>>>(job);
  check_launch("a product summed in another order");
}

template <template <bool> class Tile>
void launch_order(const Job& job, cudaStream_t stream) {
  if (sums_to_nearest(job.acc)) return launch_ordered_tiles<Tile<true>>(job, stream);
  launch_ordered_tiles<Tile<false>>(job, stream);
}

// These are in ordered_trees.cu, ordered_compensated.cu, ordered_aligned.cu and operand_blocks.cu.
void launch_trees(const Job& job, cudaStream_t stream);
void launch_compensated(const Job& job, cudaStream_t stream);
void launch_aligned(const Job& job, cudaStream_t stream);
void launch_operand_blocks(const Job& job, cudaStream_t stream);

}  // namespace lpk::cuda
