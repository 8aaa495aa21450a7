// The ends of chunks. The sums of chunks join outer sums. Where sums are split, they go to memory
// instead, one float for each chunk and output, and are added in order when all of a pass are
// there.
#pragma once

#include "cuda/rules/outer_rule.h"
#include "totals.h"

namespace lpk::cuda {

// How many chunks all passes before this one have.
LPK_HD int32_t first_chunk(const Cut& cut, int32_t pass) { return pass * cut.splits * cut.chunks; }

// Begins piece `number` of the work of this pass. Tiles of the same steps have neighbouring
// numbers.
LPK_HD void begin_work(const Job& job, int32_t number, int32_t place, Work* work) {
  work->number = number;
  work->place = place;
  if (job.parts == nullptr) {
    work->tile = number;
    work->first = 0;
    work->end = job.chunks;
    return;
  }
  const Cut& cut = job.cut;
  const auto tiles = static_cast<int32_t>(cut.tiles);
  const int32_t split = number / tiles;
  const int32_t first = first_chunk(cut, job.pass) + split * cut.chunks;
  const int32_t end = first + cut.chunks;
  work->tile = number % tiles;
  work->first = first < job.chunks ? first : job.chunks;
  work->end = end < job.chunks ? end : job.chunks;
}

// Where the sums of a tile's chunk go: output by output, row by row.
class Parts {
 public:
  LPK_HD Parts(const Job& job, int chunk, const Place& at, int rows, int cols)
      : width_(job.sums.n) {
    const Sums& s = job.sums;
    const int64_t matrix = (chunk - first_chunk(job.cut, job.pass)) * s.count + at.matrix;
    to_ = job.parts + (matrix * s.m + at.row) * s.n + at.col;
    rows_ = static_cast<int>(s.m - at.row < rows ? s.m - at.row : rows);
    cols_ = static_cast<int>(s.n - at.col < cols ? s.n - at.col : cols);
  }
  LPK_HD void keep(int row, int col, float sum) const {
    if (row < rows_ && col < cols_) to_[row * width_ + col] = sum;
  }

 private:
  float* to_;
  int64_t width_;
  int rows_, cols_;
};

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
template <class Map, int kRowSide, int kColSide, class Value>
LPK_HD bool store_tile(const Sums& s, const Place& at, int thread, const Value& value) {
  bool found = false;
  LPK_UNROLL
  for (int i = 0; i < kRowSide; ++i) {
    const int64_t row = at.row + Map::row(thread, i);
    LPK_UNROLL
    for (int j = 0; j < kColSide; ++j) {
      const int64_t col = at.col + Map::col(thread, j);
      const float sum = value(i, j);
      if (row < s.m && col < s.n) {
        found |= !(sum < 0.0f || sum > 0.0f);
        s.out[s.batch[at.matrix] + s.rows[row] + s.cols[col]] = canonical_float(sum);
      }
    }
  }
  return found;
}

// Reports whether the tile of a piece must be done again. A flag that an earlier pass set stays.
LPK_HD void report_piece(const Job& job, const Work& work, bool redo) {
  uint8_t& flag = job.redo[work.number];
  flag = redo || (job.pass > 0 && flag != 0) ? 1 : 0;
}

// The outer sum of the output with these keys after the chunks of this pass, which begin with chunk
// `first`. Eight chunks are on their way while eight are added.
LPK_HD float outer_sum(const Job& job, float outer, const float* part, int64_t apart, int first,
                       int count, uint64_t row, uint64_t col) {
  const Rounding mode = job.acc.outer_rounding;
  if (mode != Rounding::kNearestEven) {
    LPK_LOOP
    for (int c = 0; c < count; ++c) {
      const auto chunk = static_cast<uint64_t>(first + c);
      outer = closed_by(job, mode, outer, part[c * apart], row, col, chunk);
    }
    return outer;
  }
  if (job.plan->closing == Closing::kInDouble) {
    LPK_LOOP
    for (int c = 0; c < count; ++c) outer = closed(job.acc, outer, part[c * apart]);
    return outer;
  }
  constexpr int kAtOnce = 8;
  const OuterRule rule(job.acc, job.plan->closing);
  float next[kAtOnce], now[kAtOnce];
  const auto read = [&](int first) {
    // -0 leaves every sum as it is.
    LPK_UNROLL
    for (int e = 0; e < kAtOnce; ++e, part += apart) next[e] = first + e < count ? *part : -0.0f;
  };
  read(0);
  LPK_LOOP
  for (int c = 0; c < count; c += kAtOnce) {
    LPK_UNROLL
    for (int e = 0; e < kAtOnce; ++e) now[e] = next[e];
    read(c + kAtOnce);
    outer = rule.added_in_turn(outer, now);
  }
  return outer;
}

// Adds the parts of one output of split sums. The outer sum goes on from what the pass before left
// in the output, and after the last pass it becomes the result. Returns whether the result is a
// zero whose sign is in doubt.
LPK_HD bool add_parts(const Job& job, const Place& at) {
  const Sums& s = job.sums;
  float* out = s.out + s.batch[at.matrix] + s.rows[at.row] + s.cols[at.col];
  const Cut& cut = planned_cut(job);
  const int first = first_chunk(cut, job.pass);
  const int left = job.chunks - first;
  const int most = cut.splits * cut.chunks;
  const float* part = job.outer + (at.matrix * s.m + at.row) * s.n + at.col;
  const uint64_t row = row_id(s, at.matrix, at.row), col = col_id(s, at.matrix, at.col);
  const float sum = outer_sum(job, job.pass == 0 ? 0.0f : *out, part, s.count * s.m * s.n, first,
                              left < most ? left : most, row, col);
  if (job.pass + 1 < cut.passes) {
    *out = sum;
    return false;
  }
  *out = finished(job, sum, row, col);
  return !(sum < 0.0f || sum > 0.0f) && doubts_zeros(*job.plan);
}

}  // namespace lpk::cuda
