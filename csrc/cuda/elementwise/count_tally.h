// Counts of a thread block: each thread has its own in registers, and the histogram is in shared
// memory.
#pragma once

#include "count.h"
#include "count_map.h"

namespace lpk::cuda {

__device__ __forceinline__ void add_count(int64_t* to, uint64_t count) {
  if (count != 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(count));
}

// Every thread of the block makes a tally, and calls finish when it has seen its elements.
template <bool kHistogram>
class BlockTally {
 public:
  // bins: kBins of them in shared memory; not read without a histogram.
  __device__ __forceinline__ explicit BlockTally(uint32_t* bins) : bins_(bins) {
    if constexpr (kHistogram) {
      for (int i = static_cast<int>(threadIdx.x); i < kBins; i += static_cast<int>(blockDim.x))
        bins_[i] = 0;
      __syncthreads();
    }
  }

  __device__ __forceinline__ void add(double x, bool over, double result) {
    const uint32_t places = counted_as(x, over, result);
    // The counts are no indexed array, because an array would lie in memory.
    overflows_ += places >> kOverflows & 1;
    underflows_ += places >> kUnderflows & 1;
    zeros_ += places >> kZeros & 1;
    nonfinite_ += places >> kNonfinite & 1;
    if constexpr (kHistogram) atomicAdd(bins_ + exponent_bin(x), 1u);
  }

  __device__ __forceinline__ void finish(int64_t* counts) const {
    join(counts + kOverflows, overflows_);
    join(counts + kUnderflows, underflows_);
    join(counts + kZeros, zeros_);
    join(counts + kNonfinite, nonfinite_);
    if constexpr (kHistogram) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kBins; i += static_cast<int>(blockDim.x))
        add_count(counts + kCounts + i, bins_[i]);
    }
  }

 private:
  // All lanes are here, because blocks are whole warps.
  __device__ __forceinline__ static void join(int64_t* to, uint64_t mine) {
    for (int away = 16; away > 0; away /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, away);
    if (threadIdx.x % 32 == 0) add_count(to, mine);
  }

  uint32_t* bins_;
  uint64_t overflows_ = 0, underflows_ = 0, zeros_ = 0, nonfinite_ = 0;
};

}  // namespace lpk::cuda
