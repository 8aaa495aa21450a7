// Blocks aligned by the exponents of their operands. Where float32 may do, there are two kernels,
// and the operands' facts let one of them run.
#include "cuda/tiles/operand_tile.h"
#include "ordered.h"

namespace lpk::cuda {
namespace {

// There is a thread block for each tile of 32 x 32 outputs.
template <class Tile>
__global__ void __launch_bounds__(256, Tile::kBlocks)
    operand_kernel(const __grid_constant__ Job job, int64_t first_tile) {
  if (single_certified(job) != Tile::kSingle) return;
  __shared__ typename Tile::Shared shared;
  Tile part(job, first_tile + blockIdx.x, threadIdx.x);
  DeviceBlock<Tile> block(&part, &shared);
  run_tile(typename Tile::Stage(job), block);
}

template <class Tile>
void launch_tiles(const Job& job, cudaStream_t stream) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t tiles = tile_count(job.sums, Tile::Map::kLanes);
  for (int64_t first = 0; first < tiles; first += kMost) {
    const int64_t count = tiles - first < kMost ? tiles - first : kMost;
    operand_kernel<Tile>
        <<<static_cast<unsigned>(count), Tile::Map::kThreads, 0, stream>>>(job, first);
    check_launch("a product in blocks aligned by their operands");
  }
}

}  // namespace

void launch_operand_blocks(const Job& job, cudaStream_t stream) {
  if (job.acc.interleaved > 1) return launch_tiles<OperandTile<double, true>>(job, stream);
  if (single_fits(job)) launch_tiles<OperandTile<float, false>>(job, stream);
  launch_tiles<OperandTile<double, false>>(job, stream);
}

}  // namespace lpk::cuda
