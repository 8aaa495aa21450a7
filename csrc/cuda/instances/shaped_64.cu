// Certified sums to nearest in chunks, proved and watched: tiles of 64 rows or columns.
#include "shaped.h"

namespace lpk::cuda {

void launch_shaped_64(const Job& job, cudaStream_t stream) {
  if (job.cut.rows == 64) return launch_shape<64, 128>(job, stream);
  launch_shape<128, 64>(job, stream);
}

}  // namespace lpk::cuda
