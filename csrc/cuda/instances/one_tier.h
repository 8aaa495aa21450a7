// Kernels of one tier, with and without chunks: OneOf<tables, chunks> is its tile.
#pragma once

#include "certified.h"

namespace lpk::cuda {

template <Tier kTier, template <bool, bool> class OneOf>
void launch_tier(const Job& job, cudaStream_t stream) {
  with_tables(job, [&](auto tables) {
    constexpr bool kTables = decltype(tables)::value;
    if (job.acc.chunk != 0) return launch_kernel<Made<kTier, OneOf<kTables, true>>>(job, stream);
    launch_kernel<Made<kTier, OneOf<kTables, false>>>(job, stream);
  });
}

}  // namespace lpk::cuda
