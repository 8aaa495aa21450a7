// Certified sums to nearest in chunks, proved and watched: tiles of 16 rows or columns.
#include "shaped.h"

namespace lpk::cuda {

void launch_shaped_16(const Job& job, cudaStream_t stream) {
  if (job.cut.rows == 16) return launch_shape<16, 128>(job, stream);
  launch_shape<128, 16>(job, stream);
}

}  // namespace lpk::cuda
