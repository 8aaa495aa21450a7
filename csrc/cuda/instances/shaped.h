// Kernels of tiles that are not square (shapes.h), such as 16 x 128 or 128 x 16.
#pragma once

#include "certified.h"

namespace lpk::cuda {

template <bool kTables, int kRows, int kCols>
struct Shaped {
  template <class Rule>
  using Of = TileOfShape<Rule, kTables, kRows, kCols>;
};

template <int kRows, int kCols>
void launch_shape(const Job& job, cudaStream_t stream) {
  with_tables(job, [&](auto tables) {
    NearestTiers<Shaped<decltype(tables)::value, kRows, kCols>::template Of>::launch(job, stream);
  });
}

}  // namespace lpk::cuda
