// Kahan's sums.
#include "cuda/tiles/compensated_tile.h"
#include "ordered.h"

namespace lpk::cuda {

void launch_compensated(const Job& job, cudaStream_t stream) {
  launch_order<CompensatedTile>(job, stream);
}

}  // namespace lpk::cuda
