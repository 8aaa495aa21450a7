// Sums as trees.
#include "ordered.h"

namespace lpk::cuda {

void launch_trees(const Job& job, cudaStream_t stream) { launch_order<TreeTile>(job, stream); }

}  // namespace lpk::cuda
