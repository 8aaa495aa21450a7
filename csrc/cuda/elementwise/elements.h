// Elements of tensors as doubles, on the device, and grids that walk over them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "common/rng.h"
#include "common/round.h"
#include "cuda/product/tiles.h"
#include "quantize.h"

namespace lpk::cuda {

// Checks the last launch: throws std::runtime_error that names `what`.
void check_launch(const char* what);

__device__ __forceinline__ double widened(float x) { return x; }
__device__ __forceinline__ double widened(double x) { return x; }
__device__ __forceinline__ double widened(__half x) { return __half2float(x); }
__device__ __forceinline__ double widened(__nv_bfloat16 x) { return __bfloat162float(x); }

// The source of a rounding's draws: the integers behind a quantizer's format, and the call's draws.
struct ElementRounding {
  Rounding rounding;
  int32_t random_bits;
  Rng rng;
  Draws draws;

  ElementRounding() = default;
  ElementRounding(const int64_t* ints, const Draws& d)
      : rounding(static_cast<Rounding>(ints[0])),
        random_bits(static_cast<int32_t>(ints[1])),
        rng(static_cast<Rng>(ints[2])),
        draws(d) {}

  __device__ __forceinline__ uint64_t seed() const {
    if (rounding != Rounding::kStochastic) return 0;
    const uint64_t call =
        draws.device_seed != nullptr ? static_cast<uint64_t>(*draws.device_seed) : draws.seed;
    return derive_seed(call, draws.role);
  }
  // The threshold of the element with this row-major index.
  __device__ __forceinline__ double threshold(uint64_t seed, int64_t index) const {
    if (rounding != Rounding::kStochastic) return 0.0;
    const uint32_t draw =
        random_draw(rng, seed, draws.site, 0, 0, static_cast<uint64_t>(index), random_bits);
    return stochastic_threshold<double>(draw, random_bits);
  }
};

// Blocks have kElementThreads threads. A grid has enough blocks to fill any current device several
// times over, and a loop takes the rest.
constexpr int kElementThreads = 256;
constexpr int64_t kMostElementBlocks = 4096;

inline unsigned element_blocks(int64_t threads) {
  const int64_t blocks = ceil_div(threads, kElementThreads);
  return static_cast<unsigned>(blocks < kMostElementBlocks ? blocks : kMostElementBlocks);
}
__device__ __forceinline__ int64_t grid_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t grid_threads() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

}  // namespace lpk::cuda
