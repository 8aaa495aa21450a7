// Float32's own sums to nearest in chunks, by tiles of every shape but the square.
#include "certified.h"

namespace lpk::cuda {

void launch_shaped_float32(const Job& job, cudaStream_t stream) {
  with_shape(job.cut, [&](auto rows, auto cols) {
    constexpr int kRows = decltype(rows)::value, kCols = decltype(cols)::value;
    with_tables(job, [&](auto tables) {
      using Tile =
          TileOfShape<HardwareRule<Rounding::kNearestEven>, decltype(tables)::value, kRows, kCols>;
      launch_kernel<Made<Tier::kHardwareFloat, Tile>>(job, stream);
    });
  });
}

}  // namespace lpk::cuda
