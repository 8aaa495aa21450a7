// How a product is cut into blocks: a pure function of its sizes and of the processors.
// lpkernels/backends/planning/cuda.py has the same, and a test compares them.
#pragma once

#include "tiles.h"

namespace lpk::cuda {

// Tiles that a processor makes one after another, at most, where sums are split.
constexpr int64_t kMostWaves = 4;

// The sums are split where that makes the busiest processor's share of chunks smaller by a ninth or
// more: what waits in memory is written and read. chunks: of the longest sums; parts: how many sums
// of chunks may wait.
LPK_HD Cut cut_of(const Sums& s, int64_t chunks, int64_t processors, int64_t parts) {
  const int64_t tiles = tile_count(s, kTile);
  Cut cut{tiles, 1, 1, static_cast<int32_t>(chunks)};
  const int64_t room = parts / (s.count * s.m * s.n);
  if (chunks < 2 || room < 1) return cut;
  const int64_t passes = ceil_div(chunks, room);
  const int64_t in_pass = ceil_div(chunks, passes);
  int64_t least = 8 * ceil_div(tiles, processors) * chunks;
  for (int64_t waves = 1; waves <= kMostWaves; ++waves) {
    const int64_t most = waves * processors / tiles;
    if (most < 2) continue;
    const int64_t length = ceil_div(in_pass, most < in_pass ? most : in_pass);
    const int64_t cost = 9 * passes * waves * length;
    if (cost >= least) continue;
    least = cost;
    cut.splits = static_cast<int32_t>(ceil_div(in_pass, length));
    cut.passes = static_cast<int32_t>(passes);
    cut.chunks = static_cast<int32_t>(length);
  }
  return cut;
}

// The chunks of a pass that come before its first block's.
LPK_HD int32_t first_chunk(const Job& job) { return job.pass * job.cut.splits * job.cut.chunks; }

// What a block makes in this pass: tiles of the same steps side by side.
LPK_HD Work work_of(const Job& job, int64_t block) {
  if (job.parts == nullptr) return {block, 0, job.chunks};
  const auto split = static_cast<int32_t>(block / job.cut.tiles);
  const int32_t first = first_chunk(job) + split * job.cut.chunks;
  const int32_t end = first + job.cut.chunks;
  return {block % job.cut.tiles, first < job.chunks ? first : job.chunks,
          end < job.chunks ? end : job.chunks};
}

}  // namespace lpk::cuda
