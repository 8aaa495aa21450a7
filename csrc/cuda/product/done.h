// Certified kernels leave this work to the last kernel of a product: to apply bias and result
// quantizer, and to make the tiles that need the exact kernel.
#pragma once

#include "plan.h"
#include "totals.h"

namespace lpk::cuda {

// The side of the exact kernel's tiles. Rounded products cost registers and code, so their tiles
// have fewer outputs.
LPK_HD int exact_side(const Accumulator& acc) { return acc.has_product ? 32 : 64; }

// Whether the certified tile is flagged in which this exact tile lies, whose side is `side`.
LPK_HD bool flagged(const Job& job, int64_t side, int64_t tile) {
  static_assert(kTile % 64 == 0, "an exact tile lies in one certified tile");
  return job.redo[tile_at(job.sums, kTile, place_of(job.sums, side, tile))] != 0;
}

// Output number `index` of an exact tile. Its row or column lies behind the last one where there is
// no such output.
LPK_HD Place output_of(const Job& job, int64_t side, int64_t tile, int index) {
  Place at = place_of(job.sums, side, tile);
  at.row += index / side;
  at.col += index % side;
  return at;
}
LPK_HD bool is_output(const Sums& s, const Place& at) { return at.row < s.m && at.col < s.n; }

// Applies bias and result quantizer to an output that a certified kernel made.
LPK_HD void finish_output(const Job& job, const Place& at) {
  const Sums& s = job.sums;
  float* out = s.out + s.batch[at.matrix] + s.rows[at.row] + s.cols[at.col];
  *out = finished(job, *out, row_id(s, at.matrix, at.row), col_id(s, at.matrix, at.col));
}

LPK_HD bool finishes(const Job& job) {
  const Format& f = job.acc.chunk == 0 ? job.acc.fmt : job.acc.outer;
  return job.sums.bias != nullptr || job.result.rounds || f.one_zero;
}

#if defined(__CUDACC__)
// What the last kernel of a product does with an exact tile before it makes the tile's sums.
// Returns whether these sums must be made.
template <int kSide, int kThreads>
__device__ __forceinline__ bool must_redo(const Job& job, int64_t tile) {
  if (job.plan == nullptr || job.plan->tier == Tier::kExact) return true;
  const bool redo = flagged(job, kSide, tile);
  if (redo || !finishes(job)) return redo;
  for (int n = static_cast<int>(threadIdx.x); n < kSide * kSide; n += kThreads) {
    const Place at = output_of(job, kSide, tile, n);
    if (is_output(job.sums, at)) finish_output(job, at);
  }
  return false;
}
#endif

}  // namespace lpk::cuda
