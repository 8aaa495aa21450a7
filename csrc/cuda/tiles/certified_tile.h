// The certified tile. Its rules are those of float_rules.h, double_rules.h and convert_rule.h, and
// the proof is plan.h's.
#pragma once

#include "cuda/rules/float_rules.h"
#include "float_sums.h"
#include "shared.h"

namespace lpk::cuda {

// Adds two products of one element to neighbouring sums.
template <class Rule, class Real>
LPK_HD void add_two(const Rule& rule, Real a, const Real* b, Real* sums) {
  sums[0] = rule.step(a, b[0], sums[0]);
  sums[1] = rule.step(a, b[1], sums[1]);
}

template <class Rule, bool kTables, bool kChunked>
class CertifiedTile : public FloatSums<typename Rule::Real, kChunked, Rule::kMode> {
  using Real = typename Rule::Real;
  using Base = FloatSums<Real, kChunked, Rule::kMode>;
  using Base::job_;
  using Base::kSeen;
  using Base::kSide;
  using Base::place;
  using Base::scale_;
  using Base::seen_;
  using Base::sum_;
  using Base::thread_;
  using Base::work_;

 public:
  using typename Base::Map;
  using typename Base::Stage;
  // How many blocks a processor must hold. Two blocks leave a thread 128 registers.
  static constexpr int kBlocks = kChunked || kTables || sizeof(Real) == 8 ? 1 : 2;
  struct Shared {
    alignas(16) Real left[2][kDepth][Map::kLanes];
    alignas(16) Real right[2][kDepth][Map::kLanes];
    int redo;
  };

  LPK_HD CertifiedTile(const Job& job, const Work& work, int thread)
      : Base(job, work, thread),
        rule_(job.acc.fmt, work.plan.shift),
        left_(job.sums.left, place().matrix, place().row, job.sums.m, thread),
        right_(job.sums.right, place().matrix, place().col, job.sums.n, thread) {}

  LPK_HD void fetch(const Stage& stage) {
    left_.fetch(job_.sums.left, stage);
    right_.fetch(job_.sums.right, stage);
  }

  LPK_HD void put(Shared* shared, int buffer) const {
    const int step = Map::fetched_step(thread_);
    Real left[4], right[4];
    for (int e = 0; e < 4; ++e) {
      left[e] = mul_rn(static_cast<Real>(left_.value[e]), scale_);
      right[e] = right_.value[e];
    }
    LPK_UNROLL
    for (int e = 0; e < 4; e += kWidth) {
      const int lane = Map::fetched_lane(thread_, e, kWidth);
      write_shared<kWidth>(&shared->left[buffer][step][lane], left + e);
      write_shared<kWidth>(&shared->right[buffer][step][lane], right + e);
    }
  }

  // Multiplies all of a stage: the steps that it does not have are zeros, which leave every
  // certified sum as it is.
  LPK_HD void multiply(const Shared* shared, int buffer, const Stage&) {
    LPK_UNROLL_STEPS
    for (int step = 0; step < kDepth; ++step) {
      Real a[kSide], b[kSide];
      LPK_UNROLL
      for (int i = 0; i < kSide; i += kGroup) {
        read_shared<kGroup>(&shared->left[buffer][step][Map::row(thread_, i)], a + i);
        read_shared<kGroup>(&shared->right[buffer][step][Map::col(thread_, i)], b + i);
      }
      LPK_UNROLL
      for (int i = 0; i < kSide; ++i) {
        LPK_UNROLL
        for (int j = 0; j < kSide; j += 2) {
          add_two(rule_, a[i], b + j, sum_[i] + j);
          if (Rule::kWatched) seen_[j / 2 % kSeen] |= word_of(sum_[i][j]) | word_of(sum_[i][j + 1]);
        }
      }
    }
  }

  LPK_HD void finish(Shared* shared) {
    this->store(shared, Rule::kLosesZeros || (Rule::kSigned && work_.plan.signs));
  }

 private:
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  // For sm_80 a stage of doubles in a row takes more registers than there are.
  static constexpr int kStepsInARow = sizeof(Real) == 8 ? 1 : kDepth;
#else
  static constexpr int kStepsInARow = kDepth;
#endif

  Rule rule_;
  // A group is 16 bytes of shared memory.
  static constexpr int kGroup = 16 / sizeof(Real);
  static constexpr int kWidth = kTables ? 1 : kGroup;
  // Sums in double leave no registers to keep where lanes lie.
  static constexpr bool kKeeps = sizeof(Real) == 4;
  OperandFetch<Map, kTables, kWidth, Beyond::kZero, kKeeps> left_;
  OperandFetch<Map, kTables, kWidth, Rule::kBeyond, kKeeps> right_;
};

}  // namespace lpk::cuda
