// Certified sums with random rounding.
#include "cuda/tiles/stochastic_tile.h"
#include "one_tier.h"

namespace lpk::cuda {

void launch_stochastic(const Job& job, cudaStream_t stream) {
  launch_tier<Tier::kStochastic, StochasticTile>(job, stream);
}

}  // namespace lpk::cuda
