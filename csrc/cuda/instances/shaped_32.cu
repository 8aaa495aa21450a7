// Certified sums to nearest in chunks, proved and watched: tiles of 32 rows or columns.
#include "shaped.h"

namespace lpk::cuda {

void launch_shaped_32(const Job& job, cudaStream_t stream) {
  if (job.cut.rows == 32) return launch_shape<32, 128>(job, stream);
  launch_shape<128, 32>(job, stream);
}

}  // namespace lpk::cuda
