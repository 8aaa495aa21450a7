// Certified sums with random rounding.
#include "fast.h"
#include "stochastic_tile.h"

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
