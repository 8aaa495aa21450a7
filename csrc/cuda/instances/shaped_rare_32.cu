// Certified sums to nearest in chunks, made odd and in double: tiles of 32 rows or columns.
#include "shaped_rare.h"

namespace lpk::cuda {

void launch_rare_32(const Job& job, cudaStream_t stream) {
  if (job.cut.rows == 32) return launch_rare_shape<32, 128>(job, stream);
  launch_rare_shape<128, 32>(job, stream);
}

}  // namespace lpk::cuda
