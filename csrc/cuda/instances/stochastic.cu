// Certified sums with random rounding.
#include "certified.h"
#include "cuda/tiles/stochastic_tile.h"

namespace lpk::cuda {
namespace {

template <bool kTables, bool kChunked>
using Stochastic = Tiers<TierTile<Tier::kStochastic, StochasticTile<kTables, kChunked>>>;

}  // namespace

void launch_stochastic(const Job& job, cudaStream_t stream) {
  launch_layout<Stochastic>(job, stream);
}

}  // namespace lpk::cuda
