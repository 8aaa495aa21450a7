// Certified sums with random rounding.
#include "cuda/tiles/stochastic_tile.h"
#include "fast.h"

namespace lpk::cuda {

namespace {

struct Stochastic {
  template <bool kTables, bool kChunked>
  using Tile = StochasticTile<kTables, kChunked>;
};

}  // namespace

void launch_stochastic(const Job& job, cudaStream_t stream) {
  launch_layouts<Stochastic, Tier::kStochastic>(job, stream);
}

}  // namespace lpk::cuda
