// What exact kernels share: a block of 256 threads, the operands of its tile in double, the keys of
// its outputs.
#pragma once

#include "cuda/product/tiles.h"
#include "cuda/product/totals.h"
#include "cuda/rules/float_steps.h"
#include "cuda/tiles/shared.h"

namespace lpk::cuda {

// An absent tap among doubles: a NaN that no operation gives.
constexpr int64_t kAbsentDouble = 0x7ff8dead00000000;
LPK_HD double absent_double() { return Lanes<double>::value(kAbsentDouble); }
LPK_HD bool absent(double x) {
  return static_cast<int32_t>(Lanes<double>::bits(x) >> 32) ==
         static_cast<int32_t>(kAbsentDouble >> 32);
}

// Stages of both operands.
template <class Map>
struct ExactStages {
  alignas(16) double left[2][kDepth][Map::kLanes];
  alignas(16) double right[2][kDepth][Map::kLanes];
};

// One thread's part of a tile: kSide x kSide outputs, numbered row by row. The thread reads kGroup
// neighbours of an operand at a time.
template <int kSide, int kGroup>
class ExactOperands {
 public:
  using Map = BlockMap<kSide, kGroup>;
  static constexpr int kOutputs = kSide * kSide;
  static constexpr int kFetched = Map::kFetched;
  static constexpr bool kExact = true;

  LPK_HD ExactOperands(const Job& job, int64_t tile, int thread)
      : job_(job), thread_(thread), at_(place_of(job.sums, Map::kLanes, tile)) {
    left_ = job.sums.left.batch[at_.matrix];
    right_ = job.sums.right.batch[at_.matrix];
  }

  // Brings the elements of a stage from memory to registers; lanes and steps beyond the end are
  // zeros.
  template <class Stage>
  LPK_HD void fetch(const Stage& stage) {
    const Sums& s = job_.sums;
    const int step = Map::fetched_step(thread_);
    const bool inside = step < stage.count();
    const int64_t left_step = inside ? left_ + s.left.steps[stage.first() + step] : 0;
    const int64_t right_step = inside ? right_ + s.right.steps[stage.first() + step] : 0;
    LPK_UNROLL
    for (int e = 0; e < kFetched; ++e) {
      const int lane = Map::fetched_lane(thread_, e, 1);
      left_values_[e] = element(s.left, left_step, at_.row + lane, inside && at_.row + lane < s.m);
      right_values_[e] =
          element(s.right, right_step, at_.col + lane, inside && at_.col + lane < s.n);
    }
  }

  template <class Shared>
  LPK_HD void put(Shared* shared, int buffer) const {
    const int step = Map::fetched_step(thread_);
    LPK_UNROLL
    for (int e = 0; e < kFetched; ++e) {
      const int lane = Map::fetched_lane(thread_, e, 1);
      const double left = widened(left_values_[e], job_.sums.left.absent);
      const double right = widened(right_values_[e], job_.sums.right.absent);
      write_shared<1>(&shared->left[buffer][step][lane], &left);
      write_shared<1>(&shared->right[buffer][step][lane], &right);
    }
  }

 protected:
  LPK_HD int64_t row_of(int n) const { return at_.row + Map::row(thread_, n / kSide); }
  LPK_HD int64_t col_of(int n) const { return at_.col + Map::col(thread_, n % kSide); }
  LPK_HD uint64_t row_id(int64_t row) const { return cuda::row_id(job_.sums, at_.matrix, row); }
  LPK_HD uint64_t col_id(int64_t col) const { return cuda::col_id(job_.sums, at_.matrix, col); }
  // The position of a step in the contract's order.
  LPK_HD int64_t position(int64_t step) const {
    const int64_t* positions = job_.sums.positions;
    return positions == nullptr ? step : positions[step];
  }

  // Where the outermost sum of output n starts.
  LPK_HD float started(int n) const {
    const Sums& s = job_.sums;
    const int64_t row = row_of(n);
    const int64_t col = col_of(n);
    if (s.initial == nullptr || row >= s.m || col >= s.n) return 0.0f;
    const float initial = s.initial[s.batch[at_.matrix] + s.rows[row] + s.cols[col]];
    return first_sum(job_, initial, row_id(row), col_id(col));
  }

  // outer + inner of output n, rounded, at the end of a chunk.
  LPK_HD float closed_chunk(int n, double outer, double inner, int64_t chunk) const {
    return closed_by(job_, job_.acc.outer_rounding, outer, inner, row_id(row_of(n)),
                     col_id(col_of(n)), static_cast<uint64_t>(chunk));
  }

  // Stores output n, made from its sum, where there is such an output.
  LPK_HD void store(int n, double sum) const {
    const Sums& s = job_.sums;
    const int64_t row = row_of(n);
    const int64_t col = col_of(n);
    if (row >= s.m || col >= s.n) return;
    s.out[s.batch[at_.matrix] + s.rows[row] + s.cols[col]] =
        finished(job_, sum, row_id(row), col_id(col));
  }

  const Job& job_;
  int thread_;
  Place at_;
  float left_values_[kFetched], right_values_[kFetched];

 private:
  LPK_HD static float element(const Operand& o, int64_t offset, int64_t lane, bool inside) {
    return inside ? o.values[offset + o.lanes[lane]] : 0.0f;
  }
  LPK_HD static double widened(float x, bool marked) {
    return marked && word_of(x) == kAbsent ? absent_double() : x;
  }

  int64_t left_, right_;  // where the matrices of this tile begin
};

}  // namespace lpk::cuda
