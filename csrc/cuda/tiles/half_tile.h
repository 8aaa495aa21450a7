// The hardware tile of half precision and bfloat16: 128 x 128 outputs, 8 x 8 a thread, two to a
// register. One multiply-add of the processor is the contract's step, with subnormals, infinities
// and NaN, because both operands hold values of the type (plan.h). Only an absent tap may do to a
// sum of -0 what the contract does not do; then the tile is flagged.
#pragma once

#include <type_traits>

#include "cuda/operands/fetch.h"
#include "cuda/product/parts.h"
#include "cuda/rules/half_steps.h"
#include "shared.h"

namespace lpk::cuda {

template <bool kBfloat16, bool kTables, bool kChunked>
class HalfTile {
 public:
  using Stage = std::conditional_t<kChunked, Stages, PlainStages>;
  static constexpr bool kExact = false;
  static constexpr bool kTakesTurns = kChunked;
  static constexpr int kSide = 8;
  static constexpr int kPairs = kSide / 2;
  using Map = BlockMap<kSide, kSide>;
  static constexpr int kBlocks = kChunked && kTables ? 1 : 2;
  struct Shared {
    alignas(16) uint16_t left[2][kDepth][Map::kLanes];
    alignas(16) uint16_t right[2][kDepth][Map::kLanes];
    int redo;
  };

  LPK_HD HalfTile(const Job& job, const Work& work, int thread)
      : job_(job),
        thread_(thread),
        work_(work),
        left_(job.sums.left, place().matrix, place().row, job.sums.m, thread),
        right_(job.sums.right, place().matrix, place().col, job.sums.n, thread) {
    for (int i = 0; i < kSide; ++i) {
      for (int j = 0; j < kPairs; ++j) sum_[i][j] = 0;
    }
  }

  LPK_HD void begin(Shared* shared) const {
    if (thread_ == 0) shared->redo = 0;
  }

  LPK_HD void fetch(const Stage& stage) {
    left_.fetch(job_.sums.left, stage);
    right_.fetch(job_.sums.right, stage);
  }

  LPK_HD void put(Shared* shared, int buffer) const {
    const int step = Map::fetched_step(thread_);
    put_four(left_.value, shared->left[buffer][step]);
    put_four(right_.value, shared->right[buffer][step]);
  }

  LPK_HD void multiply(const Shared* shared, int buffer, const Stage&) {
    LPK_UNROLL
    for (int step = 0; step < kDepth; ++step) {
      uint32_t a[kPairs], b[kPairs];
      load_pairs(&shared->left[buffer][step][Map::row(thread_, 0)], a);
      load_pairs(&shared->right[buffer][step][Map::col(thread_, 0)], b);
      LPK_UNROLL
      for (int i = 0; i < kPairs; ++i) {
        LPK_UNROLL
        for (int j = 0; j < kPairs; ++j) {
          sum_[2 * i][j] = fma_pair<kBfloat16, false>(a[i], b[j], sum_[2 * i][j]);
          sum_[2 * i + 1][j] = fma_pair<kBfloat16, true>(a[i], b[j], sum_[2 * i + 1][j]);
        }
      }
    }
  }

  LPK_HD void close(Shared*, [[maybe_unused]] int chunk) {
    if constexpr (kChunked) {
      if (job_.parts != nullptr) return keep_parts(chunk);
      // The rows of a thread's sums come to the front one after another.
      close_rows<kSide, Map::kThreads>(job_, work_.plan, outer_at(0), chunk,
                                       [&](float (&row)[kSide]) {
                                         LPK_UNROLL
                                         for (int j = 0; j < kSide; ++j) row[j] = value(0, j);
                                         move_up();
                                       });
    }
  }

  LPK_HD void finish(Shared* shared) {
    if (kChunked && job_.parts != nullptr) return;
    const bool doubtful = store_tile<Map, kSide, kSide>(
        job_.sums, place(), thread_,
        [&](int i, int j) { return kChunked ? *outer_at(i * kSide + j) : value(i, j); });
    if (doubtful && work_.plan.signs) shared->redo = 1;
  }

  // This is called after a barrier.
  LPK_HD void report(const Shared* shared) const {
    if (thread_ == 0) report_piece(job_, work_, shared->redo != 0);
  }

 private:
  LPK_HD Place place() const { return place_of(job_.sums, kTile, work_.tile); }
  LPK_HD float* outer_at(int n) const {
    return job_.outer + (int64_t{work_.place} * (kSide * kSide) + n) * Map::kThreads + thread_;
  }
  LPK_HD void keep_parts(int chunk) {
    const Parts parts(job_, chunk, place(), kTile, kTile);
    LPK_UNROLL
    for (int i = 0; i < kSide; ++i) {
      LPK_UNROLL
      for (int j = 0; j < kSide; ++j)
        parts.keep(Map::row(thread_, i), Map::col(thread_, j), value(i, j));
      LPK_UNROLL
      for (int j = 0; j < kPairs; ++j) sum_[i][j] = 0;
    }
  }
  // Moves the rows of sums up: the first one is used up, and zeros come in at the end.
  LPK_HD void move_up() {
    LPK_UNROLL
    for (int i = 0; i < kSide; ++i) {
      LPK_UNROLL
      for (int j = 0; j < kPairs; ++j) sum_[i][j] = i + 1 < kSide ? sum_[i + 1][j] : 0;
    }
  }
  LPK_HD float value(int i, int j) const {
    return wide_float<kBfloat16>(static_cast<uint16_t>(sum_[i][j / 2] >> (j % 2 * 16)));
  }

  LPK_HD void put_four(const float* x, uint16_t* lanes) const {
    uint16_t bits[4];
    for (int e = 0; e < 4; ++e) bits[e] = narrow_word<kBfloat16>(x[e]);
    LPK_UNROLL
    for (int e = 0; e < 4; e += kWidth)
      write_shared<kWidth>(lanes + Map::fetched_lane(thread_, e, kWidth), bits + e);
  }
  LPK_HD static void load_pairs(const uint16_t* at, uint32_t* pairs) {
    uint16_t bits[kSide];
    read_shared<kSide>(at, bits);
    LPK_UNROLL
    for (int p = 0; p < kPairs; ++p) pairs[p] = pair_of(bits[2 * p], bits[2 * p + 1]);
  }

  const Job& job_;
  int thread_;
  const Work& work_;
  static constexpr int kWidth = kTables ? 1 : 4;
  OperandFetch<Map, kTables, kWidth, Beyond::kZero, true> left_;
  OperandFetch<Map, kTables, kWidth, Beyond::kNegativeZero, true> right_;
  uint32_t sum_[kSide][kPairs];
};

}  // namespace lpk::cuda
