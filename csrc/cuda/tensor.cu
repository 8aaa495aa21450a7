// Native chunks on tensor cores.
#include "fast.h"
#include "tensor_tile.h"

namespace lpk::cuda {

void launch_tensor(const Job& job, cudaStream_t stream) {
  if (reads_tables(job.sums)) {
    launch_tiles<TensorTile<false, true>, Tier::kTensorHalf>(job, stream);
    return launch_tiles<TensorTile<true, true>, Tier::kTensorBfloat16>(job, stream);
  }
  launch_tiles<TensorTile<false, false>, Tier::kTensorHalf>(job, stream);
  launch_tiles<TensorTile<true, false>, Tier::kTensorBfloat16>(job, stream);
}

}  // namespace lpk::cuda
