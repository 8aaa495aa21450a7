// The kernels of shapes.h: nearest_even in chunks, by splitting or with the subnormals' floor,
// proved or watched.
#pragma once

#include "cuda/tiles/shapes.h"
#include "fast.h"

namespace lpk::cuda {

template <class Rule, Tier kTier>
void launch_shapes(const Job& job, cudaStream_t stream) {
  with_shape(job.cut, [&](auto rows, auto cols) {
    constexpr int kRows = decltype(rows)::value, kCols = decltype(cols)::value;
    if (reads_tables(job.sums))
      return launch_tiles<TileOfShape<Rule, true, kRows, kCols>, kTier>(job, stream);
    launch_tiles<TileOfShape<Rule, false, kRows, kCols>, kTier>(job, stream);
  });
}

}  // namespace lpk::cuda
