// Certified tiles of fewer rows or columns. A thread has 32 sums, and keeps them and their outer
// sums in registers, so that a processor holds 8 to 16 warps whatever the tile.
//
// The rules are those of float_rules.h and double_rules.h, and the proof is plan.h's, as for
// certified_tile.h.
#pragma once

#include "cuda/product/parts.h"
#include "cuda/rules/float_rules.h"
#include "shared.h"

namespace lpk::cuda {

// A tile has kRows x kCols outputs. Each thread has 8 x 4 of them or 4 x 8, with the longer side
// along the tile's longer side. A thread's lanes lie in groups of kGroup neighbours, as in
// BlockMap.
template <int kTileRows, int kTileCols, int kGroup>
struct ShapedMap {
  static constexpr int kRows = kTileRows, kCols = kTileCols;
  static constexpr int kRowSide = kRows > kCols ? 8 : 4, kColSide = kRows > kCols ? 4 : 8;
  static constexpr int kThreads = kRows * kCols / 32;
  static constexpr int kDown = kRows / kRowSide, kAcross = kCols / kColSide;

  LPK_HD static int lane(int place, int i, int places) {
    return i / kGroup * (places * kGroup) + place * kGroup + i % kGroup;
  }
  LPK_HD static int row(int thread, int i) { return lane(thread / kAcross, i, kDown); }
  LPK_HD static int col(int thread, int j) { return lane(thread % kAcross, j, kAcross); }
};

template <class Rule, bool kTables, int kTileRows, int kTileCols>
class ShapedTile {
  using Real = typename Rule::Real;
  // A group is 16 bytes of shared memory.
  static constexpr int kGroup = 16 / sizeof(Real);

 public:
  using Map = ShapedMap<kTileRows, kTileCols, kGroup>;
  using Stage = Stages;
  static constexpr int kRowSide = Map::kRowSide, kColSide = Map::kColSide;
  static constexpr bool kTakesTurns = false;
  // The threads that a processor holds. A thread then has 128 registers, or 168 where few threads
  // fetch the long side or sums are in double, or 255 where both are so.
  static constexpr bool kFew = Map::kThreads == 64, kDouble = sizeof(Real) == 8;
  static constexpr int kHeld = kFew && kDouble ? 256 : kFew || kDouble ? 384 : 512;
  static constexpr int kBlocks = kHeld / Map::kThreads;
  struct Shared {
    alignas(16) Real left[2][kDepth][Map::kRows];
    alignas(16) Real right[2][kDepth][Map::kCols];
    int redo;
  };

  LPK_HD ShapedTile(const Job& job, const Work& work, int thread)
      : job_(job),
        thread_(thread),
        work_(work),
        rule_(job.acc.fmt, work.plan.shift),
        left_(job.sums.left, place().matrix, place().row, job.sums.m, thread),
        right_(job.sums.right, place().matrix, place().col, job.sums.n, thread) {
    for (int n = 0; n < kSums; ++n) {
      sum_[n / kColSide][n % kColSide] = 0;
      outer_[n] = 0.0f;
    }
  }

  LPK_HD void begin(Shared* shared) const {
    if (thread_ == 0) shared->redo = 0;
  }

  LPK_HD void fetch(const Stage& stage) {
    left_.fetch(stage);
    right_.fetch(stage);
  }

  LPK_HD void put(Shared* shared, int buffer) const {
    const Real scale = power<Real>(work_.plan.shift);
    left_.each([&](int step, int lane, float x) {
      const Real scaled = mul_rn(static_cast<Real>(x), scale);
      write_shared<1>(&shared->left[buffer][step][lane], &scaled);
    });
    right_.each([&](int step, int lane, float x) {
      const Real y = x;
      write_shared<1>(&shared->right[buffer][step][lane], &y);
    });
  }

  // Multiplies all of a stage: the steps that it does not have are zeros, which leave every
  // certified sum as it is.
  LPK_HD void multiply(const Shared* shared, int buffer, const Stage&) {
    LPK_UNROLL_STEPS
    for (int step = 0; step < kDepth; ++step) {
      Real a[kRowSide], b[kColSide];
      LPK_UNROLL
      for (int i = 0; i < kRowSide; i += kGroup)
        read_shared<kGroup>(&shared->left[buffer][step][Map::row(thread_, i)], a + i);
      LPK_UNROLL
      for (int j = 0; j < kColSide; j += kGroup)
        read_shared<kGroup>(&shared->right[buffer][step][Map::col(thread_, j)], b + j);
      LPK_UNROLL
      for (int i = 0; i < kRowSide; ++i) {
        LPK_UNROLL
        for (int j = 0; j < kColSide; ++j) {
          sum_[i][j] = rule_.step(a[i], b[j], sum_[i][j]);
          if (Rule::kWatched) seen_ |= word_of(sum_[i][j]);
        }
      }
    }
  }

  LPK_HD void close(Shared*, int chunk) {
    const Real unscale = 1 / power<Real>(work_.plan.shift);
    if (job_.parts != nullptr) {
      const Parts parts(job_, chunk, place(), Map::kRows, Map::kCols);
      LPK_UNROLL
      for (int i = 0; i < kRowSide; ++i) {
        LPK_UNROLL
        for (int j = 0; j < kColSide; ++j) {
          parts.keep(Map::row(thread_, i), Map::col(thread_, j),
                     static_cast<float>(sum_[i][j] * unscale));
          sum_[i][j] = 0;
        }
      }
      return;
    }
    const OuterRule rule(job_.acc, work_.plan.closing);
    LPK_UNROLL
    for (int n = 0; n < kSums; n += 8) {
      float part[8];
      LPK_UNROLL
      for (int e = 0; e < 8; ++e) {
        Real& sum = sum_[(n + e) / kColSide][(n + e) % kColSide];
        part[e] = static_cast<float>(sum * unscale);
        sum = 0;
      }
      rule.add_eight(outer_ + n, part);
    }
  }

  LPK_HD void finish(Shared* shared) const {
    bool redo = (seen_ & 0x40000000u) != 0;
    if (job_.parts == nullptr) {
      const bool doubtful = store_tile<Map, kRowSide, kColSide>(
          job_.sums, place(), thread_, [&](int i, int j) { return outer_[i * kColSide + j]; });
      redo |= (Rule::kLosesZeros || (Rule::kSigned && work_.plan.signs)) && doubtful;
    }
    if (redo) shared->redo = 1;
  }

  // This is called after a barrier.
  LPK_HD void report(const Shared* shared) const {
    if (thread_ == 0) report_piece(job_, work_, shared->redo != 0);
  }

 private:
  static constexpr int kSums = kRowSide * kColSide;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  // For sm_80 a stage of doubles in a row takes more registers than there are.
  static constexpr int kStepsInARow = sizeof(Real) == 8 ? 1 : kDepth;
#else
  static constexpr int kStepsInARow = kDepth;
#endif

  LPK_HD Place place() const { return place_of(job_.sums, Map::kRows, Map::kCols, work_.tile); }

  const Job& job_;
  int thread_;
  const Work& work_;
  Rule rule_;
  LaneFetch<Map::kRows, Map::kThreads, kTables, Beyond::kZero> left_;
  LaneFetch<Map::kCols, Map::kThreads, kTables, Rule::kBeyond> right_;
  Real sum_[kRowSide][kColSide];
  float outer_[kSums];
  uint32_t seen_ = 0;
};

}  // namespace lpk::cuda
