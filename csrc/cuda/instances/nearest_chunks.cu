// Certified sums to nearest in chunks, in float32, proved and watched: square tiles.
#include "certified.h"

namespace lpk::cuda {
namespace {

template <bool kTables>
struct Square {
  template <class Rule>
  using Of = CertifiedTile<Rule, kTables, true>;
};

}  // namespace

void launch_nearest_chunks(const Job& job, cudaStream_t stream) {
  if (!is_square(job.cut)) {
    if (job.cut.rows == 1 || job.cut.cols == 1) return launch_direct(job, stream);
    const int least = job.cut.rows < job.cut.cols ? job.cut.rows : job.cut.cols;
    if (least == 64) return launch_shaped_64(job, stream);
    return least == 32 ? launch_shaped_32(job, stream) : launch_shaped_16(job, stream);
  }
  with_tables(job, [&](auto tables) {
    NearestTiers<Square<decltype(tables)::value>::template Of>::launch(job, stream);
  });
}

}  // namespace lpk::cuda
