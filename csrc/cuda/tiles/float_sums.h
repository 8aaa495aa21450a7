// What certified kernels in float32 and double share: a tile has 128 x 128 outputs, and a thread
// has 8 x 8 sums, which are scaled.
//
// A tile whose sums left the certificate's bound, or may have lost the sign of a zero, is flagged,
// and the exact kernel does it again. Outer sums of chunks lie in memory, where each thread has its
// own.
#pragma once

#include <type_traits>

#include "cuda/operands/fetch.h"
#include "cuda/product/parts.h"

namespace lpk::cuda {

// A thread's lanes lie in groups of kGroup neighbours: 16 bytes of shared memory each. kMode: how
// the sums are rounded; outer sums are rounded in the same way, or to nearest.
template <class Real, bool kChunked, Rounding kMode, int kGroup = 16 / sizeof(Real)>
class FloatSums {
 public:
  using Stage = std::conditional_t<kChunked, Stages, PlainStages>;
  using Map = BlockMap<8, kGroup>;
  // Where outer sums lie in memory, a block makes several tiles one after another, because the
  // memory has room for the outer sums of a limited number of blocks.
  static constexpr bool kTakesTurns = kChunked;
  static constexpr int kSide = 8;

  LPK_HD FloatSums(const Job& job, const Work& work, int thread)
      : job_(job), thread_(thread), work_(work), scale_(power<Real>(work.plan.shift)) {
    for (int i = 0; i < kSide; ++i) {
      for (int j = 0; j < kSide; ++j) sum_[i][j] = 0;
    }
  }

  template <class Shared>
  LPK_HD void begin(Shared* shared) const {
    if (thread_ == 0) shared->redo = 0;
  }

  template <class Shared>
  LPK_HD void close(Shared*, [[maybe_unused]] int chunk) {
    if constexpr (kChunked) {
      const Real unscale = 1 / scale_;
      // The rows of a thread's sums come to the front one after another.
      const auto front = [&](float (&row)[kSide]) {
        LPK_UNROLL
        for (int j = 0; j < kSide; ++j) row[j] = static_cast<float>(sum_[0][j] * unscale);
        move_up();
      };
      if constexpr (kMode != Rounding::kNearestEven) {
        if (job_.acc.outer_rounding != Rounding::kNearestEven) {
          close_rows_by<kMode, Map, kSide>(job_, place(), thread_, outer_at(0), chunk, front);
          return;
        }
      }
      close_rows<kSide, Map::kThreads>(job_, work_.plan, outer_at(0), chunk, front);
    }
  }

  // This is called after a barrier.
  template <class Shared>
  LPK_HD void report(const Shared* shared) const {
    if (thread_ == 0) job_.redo[work_.tile] = shared->redo != 0 ? 1 : 0;
  }

 protected:
  // zeros: whether a sum that ends as zero may have the wrong sign, or may be NaN because an absent
  // tap, which is a zero here, met an infinity.
  template <class Shared>
  LPK_HD void store(Shared* shared, bool zeros) {
    const Real unscale = 1 / scale_;
    uint32_t seen = 0;
    for (int n = 0; n < kSeen; ++n) seen |= seen_[n];
    bool redo = (seen & 0x40000000u) != 0;
    const bool doubtful = store_tile<Map, kSide>(job_.sums, place(), thread_, [&](int i, int j) {
      return kChunked ? *outer_at(i * kSide + j) : static_cast<float>(sum_[i][j] * unscale);
    });
    redo |= zeros && doubtful;
    if (redo) shared->redo = 1;
  }

  LPK_HD Place place() const { return place_of(job_.sums, kTile, work_.tile); }
  LPK_HD float* outer_at(int n) const {
    return job_.outer + (int64_t{work_.place} * (kSide * kSide) + n) * Map::kThreads + thread_;
  }
  // Moves the rows of sums up: the first one is used up, and zeros come in at the end.
  LPK_HD void move_up() {
    LPK_UNROLL
    for (int i = 0; i < kSide; ++i) {
      LPK_UNROLL
      for (int j = 0; j < kSide; ++j) sum_[i][j] = i + 1 < kSide ? sum_[i + 1][j] : Real{0};
    }
  }

  const Job& job_;
  int thread_;
  const Work& work_;
  Real scale_;
  Real sum_[kSide][kSide];
  // The OR of the sums that are watched. One chain of ORs is slower than float32 sums, but not
  // slower than sums in double.
  static constexpr int kSeen = sizeof(Real) == 4 ? 4 : 1;
  uint32_t seen_[kSeen] = {};
};

}  // namespace lpk::cuda
