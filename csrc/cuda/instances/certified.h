// The kernels of certified tiles. Tiers that need about as many registers share a kernel. The plan
// says which of these tiers a launch is for; where it names none of them, the kernel returns at
// once.
#pragma once

#include <algorithm>

#include "cuda/tiles/certified_tile.h"
#include "launch.h"

namespace lpk::cuda {

// Gives all threads of a block the plan, in shared memory. Every block of the first kernel of a
// product makes the plan for itself, so that no kernel has to be started for it alone, and the
// first block leaves it for the other kernels.
__device__ __forceinline__ void begin_product(const Job& job, Plan* shared) {
  // The last thread does this: whether a thread is the first would stay in a register through all
  // tiles.
  if (threadIdx.x == blockDim.x - 1) {
    *shared = job.plans ? plan_for(job) : *job.plan;
    if (job.plans && blockIdx.x == 0) *job.plan = *shared;
  }
  __syncthreads();
}

// A tier and its tile.
template <Tier kTierOf, class TileOf>
struct TierTile {
  static constexpr Tier kTier = kTierOf;
  using Tile = TileOf;
};

// The needs of a kernel that several tiers share: as much shared memory as the largest tier, and as
// many registers as the tier with the most. That tier says how many blocks a processor must hold.
template <class... Entries>
struct Needs {
  static constexpr size_t kBytes = std::max({sizeof(typename Entries::Tile::Shared)...});
  static constexpr int kBlocks = std::min({Entries::Tile::kBlocks...});
};

// The number is read anew wherever it is asked for. If it were kept in a register for all tiers of
// a kernel, that would be one register too many.
__device__ __forceinline__ int thread_number() {
  int number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  __builtin_assume(number >= 0 && number < 1024);
  return number;
}

// Makes a block's tiles of outputs. `work` is shared by the block's threads.
template <class Tile>
__device__ __forceinline__ void make_tiles(const Job& job, char* memory, Work* work) {
  auto* shared = reinterpret_cast<typename Tile::Shared*>(memory);
  int32_t number = static_cast<int32_t>(blockIdx.x);
  do {
    if (thread_number() == 0) {
      work->tile = number;
      work->place = static_cast<int32_t>(blockIdx.x);
    }
    __syncthreads();
    Tile part(job, *work, thread_number());
    DeviceBlock<Tile> block(&part, shared);
    run_tile(typename Tile::Stage(job), block);
    __syncthreads();
    // The thread that reads the flag here is the one that clears it for the next tile.
    part.report(shared);
    number = work->tile + static_cast<int32_t>(gridDim.x);
    __syncthreads();
  } while (Tile::kTakesTurns && number < job.tiles);
}

// The tier is read anew for each entry, lest the entries become a table of jumps.
template <class First, class... Rest>
__global__ void __launch_bounds__(First::Tile::Map::kThreads, (Needs<First, Rest...>::kBlocks))
    certified_kernel(const __grid_constant__ Job job) {
  __shared__ alignas(128) char memory[Needs<First, Rest...>::kBytes];
  __shared__ alignas(Work) char words[sizeof(Work)];
  auto* work = reinterpret_cast<Work*>(words);
  begin_product(job, &work->plan);
  const auto make = [&](auto entry) {
    using Entry = decltype(entry);
    static_assert(Entry::Tile::kTakesTurns == First::Tile::kTakesTurns, "blocks in one grid");
    if (*const_cast<const volatile Tier*>(&work->plan.tier) == Entry::kTier)
      make_tiles<typename Entry::Tile>(job, memory, work);
  };
  make(First{});
  (make(Rest{}), ...);
}

// The kernel of a list of entries.
template <class First, class... Rest>
struct Tiers {
  static void launch(const Job& job, cudaStream_t stream) {
    const bool in_turn = First::Tile::kTakesTurns && job.tiles > kMostBlocks;
    const int64_t blocks = in_turn ? kMostBlocks : job.tiles;
    certified_kernel<First, Rest...>
        <<<static_cast<unsigned>(blocks), First::Tile::Map::kThreads, 0, stream>>>(job);
    check_launch("a certified kernel of a product");
  }
};

// Starts the kernel for the job's chunks and operands; KernelOf<tables, chunks> is its tiers.
template <template <bool, bool> class KernelOf>
void launch_layout(const Job& job, cudaStream_t stream) {
  const bool chunks = job.acc.chunk != 0;
  if (reads_tables(job.sums)) {
    if (chunks) return KernelOf<true, true>::launch(job, stream);
    return KernelOf<true, false>::launch(job, stream);
  }
  if (chunks) return KernelOf<false, true>::launch(job, stream);
  KernelOf<false, false>::launch(job, stream);
}

// The same for tiers that are seldom asked for. Their kernels look elements up one by one, which
// serves operands that lie side by side too.
template <template <bool, bool> class KernelOf>
void launch_rare_layout(const Job& job, cudaStream_t stream) {
  if (job.acc.chunk != 0) return KernelOf<true, true>::launch(job, stream);
  KernelOf<true, false>::launch(job, stream);
}

}  // namespace lpk::cuda
