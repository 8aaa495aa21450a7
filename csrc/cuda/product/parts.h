// The ends of chunks, where their sums join outer sums, and the outputs of certified tiles.
#pragma once

#include "cuda/rules/outer_rule.h"
#include "totals.h"

namespace lpk::cuda {

// Adds a chunk's sums of a thread's outputs to the outer sums, which lie kThreads apart from
// `outer` on. front(row) gives kCount sums and brings the next ones to the front.
template <int kCount, int kThreads, class Front>
LPK_HD void close_rows(const Job& job, const Plan& plan, float* outer, int chunk,
                       const Front& front) {
  const Closing closing = plan.closing;
  if (closing == Closing::kInDouble) {
    LPK_LOOP
    for (int i = 0; i < kCount; ++i, outer += kCount * kThreads) {
      float row[kCount];
      front(row);
      LPK_UNROLL
      for (int j = 0; j < kCount; ++j) {
        float* sum = outer + j * kThreads;
        *sum = closed(job.acc, chunk == 0 ? 0.0 : *sum, row[j]);
      }
    }
    return;
  }
  const OuterRule rule(job.acc, closing);
  LPK_LOOP
  for (int i = 0; i < kCount; ++i, outer += kCount * kThreads) {
    float row[kCount], sums[kCount];
    front(row);
    LPK_UNROLL
    for (int j = 0; j < kCount; ++j) sums[j] = chunk == 0 ? 0.0f : outer[j * kThreads];
    rule.add(sums, row);
    LPK_UNROLL
    for (int j = 0; j < kCount; ++j) outer[j * kThreads] = sums[j];
  }
}

// The same where outer sums are rounded as the sums of the chunks are, by kMode. The thread has
// outputs of the tile at this place.
template <Rounding kMode, class Map, int kCount, class Front>
LPK_HD void close_rows_by(const Job& job, const Place& at, int thread, float* outer, int chunk,
                          const Front& front) {
  LPK_LOOP
  for (int i = 0; i < kCount; ++i, outer += kCount * Map::kThreads) {
    float row[kCount];
    front(row);
    const uint64_t row_key = row_id(job.sums, at.matrix, at.row + Map::row(thread, i));
    LPK_UNROLL
    for (int j = 0; j < kCount; ++j) {
      const uint64_t col_key = col_id(job.sums, at.matrix, at.col + Map::col(thread, j));
      float* sum = outer + j * Map::kThreads;
      *sum = closed_by(job, kMode, chunk == 0 ? 0.0 : *sum, row[j], row_key, col_key,
                       static_cast<uint64_t>(chunk));
    }
  }
}

// Stores the outputs of a thread; value(i, j) is one of them. Returns whether an output is zero or
// NaN.
template <class Map, int kSide, class Value>
LPK_HD bool store_tile(const Sums& s, const Place& at, int thread, const Value& value) {
  bool special = false;
  LPK_UNROLL
  for (int i = 0; i < kSide; ++i) {
    const int64_t row = at.row + Map::row(thread, i);
    LPK_UNROLL
    for (int j = 0; j < kSide; ++j) {
      const int64_t col = at.col + Map::col(thread, j);
      const float sum = value(i, j);
      if (row < s.m && col < s.n) {
        special |= !(sum < 0.0f || sum > 0.0f);
        s.out[s.batch[at.matrix] + s.rows[row] + s.cols[col]] = canonical_float(sum);
      }
    }
  }
  return special;
}

}  // namespace lpk::cuda
