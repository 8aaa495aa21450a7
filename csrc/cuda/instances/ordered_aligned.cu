// Aligned blocks.
#include "cuda/tiles/aligned_tile.h"
#include "ordered.h"

namespace lpk::cuda {

void launch_aligned(const Job& job, cudaStream_t stream) { launch_order<AlignedTile>(job, stream); }

}  // namespace lpk::cuda
