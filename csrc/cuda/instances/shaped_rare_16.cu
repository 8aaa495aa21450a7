// Certified sums to nearest in chunks, made odd and in double: tiles of 16 rows or columns.
#include "shaped_rare.h"

namespace lpk::cuda {

void launch_rare_16(const Job& job, cudaStream_t stream) {
  if (job.cut.rows == 16) return launch_rare_shape<16, 128>(job, stream);
  launch_rare_shape<128, 16>(job, stream);
}

}  // namespace lpk::cuda
