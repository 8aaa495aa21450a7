// The kernels of certified tiles. Tiers that need about as many registers share a kernel. The plan
// says which of these tiers a launch is for; where it names none of them, the kernel returns at
// once.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "cuda/product/begin.h"
#include "cuda/tiles/certified_tile.h"
#include "cuda/tiles/half_tile.h"
#include "cuda/tiles/shapes.h"

namespace lpk::cuda {

// Checks the last launch: throws std::runtime_error that names `what`.
void check_launch(const char* what);

// A tier and the tile that is made for it.
template <Tier kTierOf, class TileOf>
struct Made {
  static constexpr Tier kTier = kTierOf;
  using Tile = TileOf;
};

// The shared memory that a block has without asking for more.
constexpr size_t kSharedBytes = size_t{48} << 10;

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

// Makes a block's tiles of outputs, from all of their steps or from the steps of some chunks.
// kShared: `work` is the block's, and the first thread writes it.
template <class Tile, bool kShared>
__device__ __forceinline__ void make_tiles(const Job& job, char* memory, Work* work) {
  auto* shared = reinterpret_cast<typename Tile::Shared*>(memory);
  const auto place = static_cast<int32_t>(blockIdx.x);
  int32_t number = place;
  do {
    if (!kShared || thread_number() == 0) begin_work(job, number, place, work);
    if (kShared) __syncthreads();
    Tile part(job, *work, thread_number());
    DeviceBlock<Tile> block(&part, shared);
    run_tile(typename Tile::Stage(job, *work), block);
    __syncthreads();
    // The thread that reads the flag here is the one that clears it for the next tile.
    part.report(shared);
    number = work->number + static_cast<int32_t>(gridDim.x);
    if (kShared) __syncthreads();
  } while (Tile::kTakesTurns && number < job.cut.tiles * job.cut.splits);
}

// The tier is read anew for each entry, lest the entries become a table of jumps.
template <class First, class... Rest>
__global__ void __launch_bounds__(First::Tile::Map::kThreads, (Needs<First, Rest...>::kBlocks))
    certified_kernel(const __grid_constant__ Job job) {
  constexpr size_t kBytes = Needs<First, Rest...>::kBytes;
  __shared__ alignas(128) char memory[kBytes];
  const auto make = [&](auto entry, auto shared, Work* work) {
    using Entry = decltype(entry);
    static_assert(Entry::Tile::Map::kThreads == First::Tile::Map::kThreads, "blocks of one size");
    static_assert(Entry::Tile::kTakesTurns == First::Tile::kTakesTurns, "blocks in one grid");
    constexpr bool kShared = decltype(shared)::value;
    const Tier tier =
        kShared ? *const_cast<const volatile Tier*>(&work->plan.tier) : work->plan.tier;
    if (tier == Entry::kTier) make_tiles<typename Entry::Tile, kShared>(job, memory, work);
  };
  if constexpr (kBytes + sizeof(Work) <= kSharedBytes) {
    __shared__ alignas(Work) char words[sizeof(Work)];
    auto* work = reinterpret_cast<Work*>(words);
    begin_product(job, &work->plan);
    make(First{}, std::true_type{}, work);
    (make(Rest{}, std::true_type{}, work), ...);
  } else {
    // The tiles take all of the shared memory. This is not the first kernel of a product.
    Work work;
    work.plan = *job.plan;
    make(First{}, std::false_type{}, &work);
    (make(Rest{}, std::false_type{}, &work), ...);
  }
}

template <class First, class... Rest>
void launch_kernel(const Job& job, cudaStream_t stream) {
  const int64_t pieces = job.cut.tiles * job.cut.splits;
  const bool in_turn = First::Tile::kTakesTurns && pieces > kMostBlocks;
  const int64_t blocks = in_turn ? kMostBlocks : pieces;
  certified_kernel<First, Rest...>
      <<<static_cast<unsigned>(blocks), First::Tile::Map::kThreads, 0, stream>>>(job);
  check_launch("a certified kernel of a product");
}

// A list of entries, which can be put together from several lists.
template <class... Entries>
struct Tiers {
  static void launch(const Job& job, cudaStream_t stream) {
    launch_kernel<Entries...>(job, stream);
  }
};

template <class... Lists>
struct Joined;
template <class... Entries>
struct Joined<Tiers<Entries...>> {
  using Of = Tiers<Entries...>;
};
template <class... A, class... B, class... Lists>
struct Joined<Tiers<A...>, Tiers<B...>, Lists...> : Joined<Tiers<A..., B...>, Lists...> {};

// The tiers to nearest in float32, proved and watched; OneOf<Rule> is a rule's tile.
template <template <class> class OneOf>
using NearestTiers =
    Tiers<Made<Tier::kTwoStep, OneOf<TwoStepRule<NearestSum, Limit::kProved>>>,
          Made<Tier::kTwoStepWatched, OneOf<TwoStepRule<NearestSum, Limit::kWatched>>>,
          Made<Tier::kSplit, OneOf<SplitRule<NearestSum, Limit::kProved>>>,
          Made<Tier::kSplitWatched, OneOf<SplitRule<NearestSum, Limit::kWatched>>>,
          Made<Tier::kFloor, OneOf<FloorRule<NearestSum, Limit::kProved>>>,
          Made<Tier::kFloorWatched, OneOf<FloorRule<NearestSum, Limit::kWatched>>>>;

// The other tiers to nearest in float32: clipped, and made odd.
template <template <class> class OneOf>
using RareTiers =
    Tiers<Made<Tier::kTwoStepClipped, OneOf<TwoStepRule<NearestSum, Limit::kClipped>>>,
          Made<Tier::kTwoStepOdd, OneOf<TwoStepRule<OddSum, Limit::kWatched>>>,
          Made<Tier::kSplitClipped, OneOf<SplitRule<NearestSum, Limit::kClipped>>>,
          Made<Tier::kSplitOdd, OneOf<SplitRule<OddSum, Limit::kWatched>>>,
          Made<Tier::kFloorClipped, OneOf<FloorRule<NearestSum, Limit::kClipped>>>,
          Made<Tier::kFloorOdd, OneOf<FloorRule<OddSum, Limit::kWatched>>>>;

// Calls visit with what reads_tables says, as a type.
template <class Visit>
void with_tables(const Job& job, const Visit& visit) {
  if (reads_tables(job.sums)) return visit(std::true_type{});
  visit(std::false_type{});
}

// Each of these functions is in a file of its own. The first ones are for sums in chunks: to
// nearest, proved and watched, by tiles of the shape of job.cut; then the other tiers to nearest,
// by square tiles; then the tiers made odd and in double, by tiles that are not square.
void launch_nearest_chunks(const Job& job, cudaStream_t stream);
void launch_shaped_64(const Job& job, cudaStream_t stream);
void launch_shaped_32(const Job& job, cudaStream_t stream);
void launch_shaped_16(const Job& job, cudaStream_t stream);
void launch_direct(const Job& job, cudaStream_t stream);
void launch_rare_chunks(const Job& job, cudaStream_t stream);
void launch_rare_64(const Job& job, cudaStream_t stream);
void launch_rare_32(const Job& job, cudaStream_t stream);
void launch_rare_16(const Job& job, cudaStream_t stream);
void launch_rare_direct(const Job& job, cudaStream_t stream);
// These are for sums without chunks, to nearest: in float32 or half precision, and in double.
void launch_nearest(const Job& job, cudaStream_t stream);
void launch_double(const Job& job, cudaStream_t stream);
// These are for one tier each, with and without chunks; the second one has the shapes that the
// first one has not, for sums to nearest in chunks.
void launch_float32(const Job& job, cudaStream_t stream);
void launch_shaped_float32(const Job& job, cudaStream_t stream);
void launch_truncated(const Job& job, cudaStream_t stream);
void launch_stochastic(const Job& job, cudaStream_t stream);
// These are for native chunks: the operands are copied first.
void launch_halves(const Job& job, cudaStream_t stream);
void launch_tensor(const Job& job, cudaStream_t stream);

}  // namespace lpk::cuda
