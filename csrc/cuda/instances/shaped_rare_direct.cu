// Certified sums to nearest in chunks, made odd and in double: tiles of one row or column.
#include "shaped_rare.h"

namespace lpk::cuda {

void launch_rare_direct(const Job& job, cudaStream_t stream) {
  if (job.cut.rows == 1) return launch_rare_shape<1, 32>(job, stream);
  launch_rare_shape<512, 1>(job, stream);
}

}  // namespace lpk::cuda
