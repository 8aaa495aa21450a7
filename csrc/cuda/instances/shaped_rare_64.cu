// Certified sums to nearest in chunks, made odd and in double: tiles of 64 rows or columns.
#include "shaped_rare.h"

namespace lpk::cuda {

void launch_rare_64(const Job& job, cudaStream_t stream) {
  if (job.cut.rows == 64) return launch_rare_shape<64, 128>(job, stream);
  launch_rare_shape<128, 64>(job, stream);
}

}  // namespace lpk::cuda
