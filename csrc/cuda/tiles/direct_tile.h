// Certified tiles of a single column or row. A thread makes outputs of its own and reads their
// elements without shared memory. These tiles are for depthwise convolutions and for products of a
// matrix and a vector.
//
// The rules are those of float_rules.h and double_rules.h, and the proof is plan.h's, as for
// certified_tile.h.
#pragma once

#include "cuda/product/parts.h"
#include "cuda/rules/float_rules.h"

namespace lpk::cuda {

// A tile is a column of outputs, where a thread's outputs lie kThreads apart, or a row with one
// output a thread. In a column a thread's place is the tile's; in a row it is the thread's own
// (place_in_row).
template <int kTileRows, int kTileCols>
struct DirectMap {
  static constexpr int kRows = kTileRows, kCols = kTileCols;
  static constexpr bool kIsRow = kRows == 1;
  static constexpr int kThreads = kIsRow ? kCols : 128;
  static constexpr int kEach = kRows * kCols / kThreads;
  static_assert(kIsRow || kCols == 1, "a row or a column");
  LPK_HD static int row(int thread, int i) { return kIsRow ? 0 : thread + i * kThreads; }
  LPK_HD static int col(int, int) { return 0; }
  LPK_HD static Place place(const Sums& s, int32_t tile, int thread) {
    if (kIsRow) return place_in_row(s, kCols, tile, thread);
    return place_of(s, kRows, kCols, tile);
  }
};

// Reads the elements of one lane or several step by step; lane(l) is one of these lanes.
template <int kLanes, bool kTables>
class Walk {
 public:
  template <class Lane>
  LPK_HD Walk(const Operand& o, int64_t matrix, int64_t lanes, const Lane& lane) : steps_(o) {
    LPK_UNROLL
    for (int l = 0; l < kLanes; ++l) from_[l] = lane_of(o, matrix, lane(l), lanes);
  }

  template <int kSteps>
  LPK_HD void read(int first, float (&to)[kSteps][kLanes]) const {
    steps_.template each<kSteps, 1>(first, kSteps, [&](int e, bool, int64_t at) {
      LPK_UNROLL
      for (int l = 0; l < kLanes; ++l) to[e][l] = element_at<kTables>(from_[l], at);
    });
  }

 private:
  StepOffsets<kTables> steps_;
  const char* from_[kLanes];
};

template <class Rule, bool kTables, int kTileRows, int kTileCols>
class DirectTile {
  using Real = typename Rule::Real;

 public:
  using Map = DirectMap<kTileRows, kTileCols>;
  // Threads meet at the end of a stage, so stages are long and few.
  using Stage = StagesOf<64>;
  static constexpr bool kTakesTurns = false;
  // A thread has 80 registers, or 96 where sums are in double.
  static constexpr int kBlocks = (sizeof(Real) == 8 ? 640 : 768) / Map::kThreads;
  struct Shared {
    int redo;
  };

  LPK_HD DirectTile(const Job& job, const Work& work, int thread)
      : job_(job),
        thread_(thread),
        work_(work),
        at_(Map::place(job.sums, work.tile, thread)),
        rule_(job.acc.fmt, work.plan.shift),
        scale_(power<Real>(work.plan.shift)),
        left_(job.sums.left, at_.matrix, job.sums.m,
              [&](int i) { return at_.row + Map::row(thread, i); }),
        right_(job.sums.right, at_.matrix, job.sums.n,
               [&](int j) { return at_.col + Map::col(thread, j); }) {
    for (int n = 0; n < kEach; ++n) {
      sum_[n] = 0;
      outer_[n] = 0.0f;
    }
  }

  LPK_HD void begin(Shared* shared) const {
    if (thread_ == 0) shared->redo = 0;
  }
  LPK_HD void fetch(const Stage&) const {}
  LPK_HD void put(Shared*, int) const {}

  LPK_HD void multiply(const Shared*, int, const Stage& stage) {
    const int end = stage.first() + stage.count();
    int step = stage.first();
    LPK_LOOP
    for (; step + kAtOnce <= end; step += kAtOnce) multiply_steps<kAtOnce>(step);
    LPK_LOOP
    for (; step < end; ++step) multiply_steps<1>(step);
  }

  LPK_HD void close(Shared*, int chunk) {
    const Real unscale = 1 / scale_;
    if (job_.parts != nullptr) {
      const Parts parts(job_, chunk, at_, Map::kRows, Map::kCols);
      LPK_UNROLL
      for (int n = 0; n < kEach; ++n)
        parts.keep(Map::row(thread_, n), Map::col(thread_, n),
                   static_cast<float>(sum_[n] * unscale));
    } else {
      const OuterRule rule(job_.acc, work_.plan.closing);
      LPK_UNROLL
      for (int n = 0; n < kEach; ++n)
        outer_[n] = rule.added(outer_[n], static_cast<float>(sum_[n] * unscale));
    }
    LPK_UNROLL
    for (int n = 0; n < kEach; ++n) sum_[n] = 0;
  }

  LPK_HD void finish(Shared* shared) const {
    bool redo = (seen_ & 0x40000000u) != 0;
    if (job_.parts == nullptr) {
      const bool doubtful =
          store_tile<Map, kEach, 1>(job_.sums, at_, thread_, [&](int i, int) { return outer_[i]; });
      redo |= (Rule::kLosesZeros || (Rule::kSigned && work_.plan.signs)) && doubtful;
    }
    if (redo) shared->redo = 1;
  }

  // This is called after a barrier.
  LPK_HD void report(const Shared* shared) const {
    if (thread_ == 0) report_piece(job_, work_, shared->redo != 0);
  }

 private:
  static constexpr int kEach = Map::kEach;
  // The elements of so many steps are on their way at a time.
  static constexpr int kAtOnce = kEach == 1 ? 8 : 4;

  template <int kSteps>
  LPK_HD void multiply_steps(int first) {
    float a[kSteps][kEach], b[kSteps][1];
    left_.read(first, a);
    right_.read(first, b);
    LPK_UNROLL
    for (int e = 0; e < kSteps; ++e) {
      LPK_UNROLL
      for (int n = 0; n < kEach; ++n) {
        const Real x = mul_rn(static_cast<Real>(a[e][n]), scale_);
        sum_[n] = rule_.step(x, static_cast<Real>(b[e][0]), sum_[n]);
        if (Rule::kWatched) seen_ |= word_of(sum_[n]);
      }
    }
  }

  const Job& job_;
  int thread_;
  const Work& work_;
  Place at_;
  Rule rule_;
  Real scale_;
  Walk<kEach, kTables> left_;
  Walk<1, kTables> right_;
  Real sum_[kEach];
  float outer_[kEach];
  uint32_t seen_ = 0;
};

}  // namespace lpk::cuda
