// The kernels of products by the functions that start them, each in a file of its own.
#pragma once

#include <cuda_runtime.h>

#include "cuda/product/sums.h"

namespace lpk::cuda {

// Checks the last launch: throws std::runtime_error that names `what`.
void check_launch(const char* what);

// Certified sums: to nearest in float32 and through float32 in half precision; to nearest in rare
// tiers (clipped, made odd, in double); in float32's own arithmetic; toward_zero; random rounding.
void launch_nearest(const Job& job, cudaStream_t stream);
void launch_rare(const Job& job, cudaStream_t stream);
void launch_float32(const Job& job, cudaStream_t stream);
void launch_truncated(const Job& job, cudaStream_t stream);
void launch_stochastic(const Job& job, cudaStream_t stream);

// The last kernel of a product, and the only one where no plan is given.
void launch_exact(const Job& job, cudaStream_t stream);

}  // namespace lpk::cuda
