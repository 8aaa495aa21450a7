// Certified kernels leave this work to the last kernel of a product: to add the chunks of split
// sums, to apply bias and result quantizer, and to make the tiles that need the exact kernel.
#pragma once

#include "parts.h"

namespace lpk::cuda {

// The side of the exact kernel's tiles. Rounded products cost registers and code, so their tiles
// have fewer outputs.
LPK_HD int exact_side(const Accumulator& acc) { return acc.has_product ? 32 : 64; }

// Whether blocks flagged a certified tile that overlaps this exact tile, whose side is `side`.
// Thread `turn` of `turns` looks at its share of the flags.
LPK_HD bool flagged(const Job& job, int64_t side, int64_t tile, int turn, int turns) {
  const Sums& s = job.sums;
  const Cut& cut = planned_cut(job);
  const Place at = place_of(s, side, tile);
  const int64_t end_row = at.row + side < s.m ? at.row + side : s.m;
  const int64_t end_col = at.col + side < s.n ? at.col + side : s.n;
  const int64_t first = tile_at(s, cut.rows, cut.cols, at);
  // Tiles of a single row are numbered row by row, and other tiles by one row of tiles after
  // another.
  const int64_t apart = tile_at(s, cut.rows, cut.cols, {0, cut.rows, 0});
  const int64_t across =
      tile_at(s, cut.rows, cut.cols, {at.matrix, at.row, end_col - 1}) - first + 1;
  const int64_t down = (end_row - 1) / cut.rows - at.row / cut.rows + 1;
  const int64_t overlaps = across * down;
  for (int64_t n = turn; n < overlaps * cut.splits; n += turns) {
    const int64_t of = n % overlaps;
    if (job.redo[n / overlaps * cut.tiles + first + of / across * apart + of % across] != 0)
      return true;
  }
  return false;
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
  return job.sums.bias != nullptr || job.result.given || f.one_zero;
}

// `arrived` counts blocks. From this bit on it counts those of them that saw a doubtful zero.
constexpr uint32_t kDoubt = 1u << 16;

#if defined(__CUDACC__)
// What the last kernel of a product does with an exact tile before it makes the tile's sums.
// Returns whether these sums must be made. Where sums are split, every thread of kOutputs blocks
// adds the parts of one output, and the block that is done last goes on. words: two words in shared
// memory.
template <int kSide, int kThreads>
__device__ __forceinline__ bool must_redo(const Job& job, int64_t tile, int slice, int* words) {
  constexpr int kOutputs = kSide * kSide / kThreads;
  if (job.plan == nullptr) return true;
  if (job.plan->tier == Tier::kExact) return job.pass == 0 && slice == 0;
  const Cut& cut = planned_cut(job);
  const bool split = cut.splits > 1;
  if (job.pass >= cut.passes || (!split && slice > 0)) return false;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) words[0] = 0;
  __syncthreads();
  if (split) {
    const Place at = output_of(job, kSide, tile, slice * kThreads + thread);
    if (is_output(job.sums, at) && add_parts(job, at)) words[0] = 1;
    if (job.pass + 1 < cut.passes) return false;
    __syncthreads();
    if (thread == 0) {
      __threadfence();
      const uint32_t before = atomicAdd(&job.arrived[tile], words[0] != 0 ? kDoubt + 1 : 1u);
      __threadfence();
      words[1] = before % kDoubt + 1 == kOutputs ? 1 : 0;
      if (before >= kDoubt) words[0] = 1;
    }
    __syncthreads();
    if (words[1] == 0) return false;
  }
  if (flagged(job, kSide, tile, thread, kThreads)) words[0] = 1;
  __syncthreads();
  const bool redo = words[0] != 0;
  __syncthreads();
  if (redo || split || !finishes(job)) return redo;
  for (int n = thread; n < kSide * kSide; n += kThreads) {
    const Place at = output_of(job, kSide, tile, n);
    if (is_output(job.sums, at)) finish_output(job, at);
  }
  return false;
}
#endif

}  // namespace lpk::cuda
