// The kernels of certified tiles: each begins by asking the plan whether it is meant.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/tiles/fast_tile.h"

namespace lpk::cuda {

// Of the last launch: throws std::runtime_error that names `what`.
void check_launch(const char* what);

// Whether blocks make several tiles one after another: sums in chunks, whose outer sums may lie in
// memory, those of as many blocks as that has room for.
template <class Tile>
constexpr bool kTakesTurns = !std::is_same_v<typename Tile::Stage, PlainStages>;

// A block makes tiles of outputs, from all of their steps or those of some chunks.
template <class Tile, Tier kTier>
__global__ void __launch_bounds__(Tile::Map::kThreads, Tile::kBlocks)
    fast_kernel(const __grid_constant__ Job job, int64_t first_block) {
  if (job.plan->tier != kTier) return;
  __shared__ typename Tile::Shared shared;
  const int64_t pieces = job.cut.tiles * job.cut.splits;
  int64_t number = first_block + blockIdx.x;
  do {
    const Work work = work_of(job, number, static_cast<int32_t>(blockIdx.x));
    Tile part(job, work, threadIdx.x);
    DeviceBlock<Tile> block(&part, &shared);
    run_tile(typename Tile::Stage(job, work), block);
    __syncthreads();
    // The thread that reads the flag here is the one that clears it for the next tile.
    part.report(&shared);
    number += gridDim.x;
  } while (kTakesTurns<Tile> && number < pieces);
}

template <class Tile, Tier kTier>
void launch_tiles(const Job& job, cudaStream_t stream) {
  const int64_t pieces = job.cut.tiles * job.cut.splits;
  constexpr int64_t kMost = kTakesTurns<Tile> ? kMostBlocks : int64_t{1} << 30;
  const int64_t launched = kTakesTurns<Tile> && pieces > kMost ? kMost : pieces;
  for (int64_t first = 0; first < launched; first += kMost) {
    const int64_t count = launched - first < kMost ? launched - first : kMost;
    fast_kernel<Tile, kTier>
        <<<static_cast<unsigned>(count), Tile::Map::kThreads, 0, stream>>>(job, first);
    check_launch("a certified kernel of a product");
  }
}

// Family::Tile<whether operands have tables, whether there are chunks>.
template <class Family, Tier kTier>
void launch_layouts(const Job& job, cudaStream_t stream) {
  const bool tables = reads_tables(job.sums);
  const bool chunked = job.acc.chunk != 0;
  if (tables && chunked)
    return launch_tiles<typename Family::template Tile<true, true>, kTier>(job, stream);
  if (tables) return launch_tiles<typename Family::template Tile<true, false>, kTier>(job, stream);
  if (chunked) return launch_tiles<typename Family::template Tile<false, true>, kTier>(job, stream);
  launch_tiles<typename Family::template Tile<false, false>, kTier>(job, stream);
}

template <class Rule>
struct Fast {
  template <bool kTables, bool kChunked>
  using Tile = FastTile<Rule, kTables, kChunked>;
};

template <class Rule, Tier kTier>
void launch_rule(const Job& job, cudaStream_t stream) {
  launch_layouts<Fast<Rule>, kTier>(job, stream);
}

// Each in a file of its own: kernels for all that a plan may ask for.
void launch_split(const Job& job, cudaStream_t stream);
void launch_floor(const Job& job, cudaStream_t stream);
void launch_shaped_split(const Job& job, cudaStream_t stream);
void launch_shaped_floor(const Job& job, cudaStream_t stream);
void launch_truncated(const Job& job, cudaStream_t stream);
void launch_float32(const Job& job, cudaStream_t stream);
void launch_half(const Job& job, cudaStream_t stream);
void launch_double(const Job& job, cudaStream_t stream);
void launch_stochastic(const Job& job, cudaStream_t stream);
void launch_tensor(const Job& job, cudaStream_t stream);

}  // namespace lpk::cuda
