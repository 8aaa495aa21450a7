// Extents of blocks from the lanes of a warp.
#pragma once

#include "block_map.h"

namespace lpk::cuda {

// Gives every lane of the group the whole extent.
template <int kLanes>
__device__ __forceinline__ Extent whole_extent(Extent mine) {
  if constexpr (kLanes > 1) {
    for (int away = kLanes / 2; away > 0; away /= 2) {
      const double other = __shfl_xor_sync(0xffffffffu, mine.largest, away);
      mine.largest = other > mine.largest ? other : mine.largest;
    }
    mine.special = __any_sync(0xffffffffu, mine.special) != 0;
    mine.number = __any_sync(0xffffffffu, mine.number) != 0;
  }
  return mine;
}

}  // namespace lpk::cuda
