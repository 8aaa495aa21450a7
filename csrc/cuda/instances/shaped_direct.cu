// Certified sums to nearest in chunks, proved and watched: tiles of one row or column.
#include "shaped.h"

namespace lpk::cuda {

void launch_direct(const Job& job, cudaStream_t stream) {
  if (job.cut.rows == 1) return launch_shape<1, 32>(job, stream);
  launch_shape<512, 1>(job, stream);
}

}  // namespace lpk::cuda
