// Exact sums with random rounding.
#include "exact.h"

namespace lpk::cuda {

void launch_exact_stochastic(const Job& job, cudaStream_t stream) {
  launch_exact_mode<Rounding::kStochastic>(job, stream);
}

}  // namespace lpk::cuda
