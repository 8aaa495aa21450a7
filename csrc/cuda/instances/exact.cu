// The kernels of exact_tile.h, one for each rounding, with products rounded and not.
#include "cuda/product/done.h"
#include "cuda/tiles/exact_tile.h"
#include "launch.h"

namespace lpk::cuda {
namespace {

// How many blocks a processor must hold: fewer where a block needs more than 128 registers a
// thread.
template <Rounding kMode, bool kRounds>
constexpr int kExactBlocks = kMode != Rounding::kStochastic && !kRounds ? 2 : 1;

// A block owns one tile of 16 kSide x 16 kSide outputs and all of their steps. Where a plan is
// given, this kernel does only the work that the certified kernels left (done.h).
template <int kSide, Rounding kMode, bool kRounds>
__global__ void __launch_bounds__(256, (kExactBlocks<kMode, kRounds>))
    exact_kernel(const __grid_constant__ Job job, int64_t first_block) {
  using Tile = ExactTile<kSide, kMode, kRounds>;
  using Map = typename Tile::Map;
  __shared__ typename Tile::Shared shared;
  const int64_t tile = first_block + blockIdx.x;
  if (!must_redo<Map::kLanes, Map::kThreads>(job, tile)) return;

  Tile part(job, tile, threadIdx.x);
  DeviceBlock<Tile> block(&part, &shared);
  run_tile(Stages(job), block);
}

template <int kSide, Rounding kMode, bool kRounds>
void launch_kernel(const Job& job, cudaStream_t stream) {
  using Map = BlockMap<kSide, 2>;
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t blocks = tile_count(job.sums, Map::kLanes);
  for (int64_t first = 0; first < blocks; first += kMost) {
    const int64_t count = blocks - first < kMost ? blocks - first : kMost;
    exact_kernel<kSide, kMode, kRounds>
        <<<static_cast<unsigned>(count), Map::kThreads, 0, stream>>>(job, first);
    check_launch("the last kernel of a product");
  }
}

// Rounded products cost more registers and code, so a thread has fewer outputs.
template <Rounding kMode>
void launch_mode(const Job& job, cudaStream_t stream) {
  if (job.acc.has_product) return launch_kernel<2, kMode, true>(job, stream);
  launch_kernel<4, kMode, false>(job, stream);
}

}  // namespace

void launch_exact(const Job& job, cudaStream_t stream) {
  switch (job.acc.rounding) {
    case Rounding::kNearestEven:
      return launch_mode<Rounding::kNearestEven>(job, stream);
    case Rounding::kNearestAway:
      return launch_mode<Rounding::kNearestAway>(job, stream);
    case Rounding::kTowardZero:
      return launch_mode<Rounding::kTowardZero>(job, stream);
    case Rounding::kTowardPositive:
      return launch_mode<Rounding::kTowardPositive>(job, stream);
    case Rounding::kTowardNegative:
      return launch_mode<Rounding::kTowardNegative>(job, stream);
    case Rounding::kToOdd:
      return launch_mode<Rounding::kToOdd>(job, stream);
    case Rounding::kStochastic:
      return launch_mode<Rounding::kStochastic>(job, stream);
  }
}

}  // namespace lpk::cuda
