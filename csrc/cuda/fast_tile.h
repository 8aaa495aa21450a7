// The certified tile: the rules are those of float_rules.h, double_rules.h and convert_rule.h, the
// proof is plan.h's.
#pragma once

#include "float_rules.h"
#include "float_sums.h"

namespace lpk::cuda {

// Two products of one element that join neighbouring sums.
template <class Rule, class Real>
LPK_HD void add_two(const Rule& rule, Real a, const Real* b, Real* sums) {
  sums[0] = rule.step(a, b[0], sums[0]);
  sums[1] = rule.step(a, b[1], sums[1]);
}

template <class Rule, bool kTables, bool kChunked>
class FastTile : public FloatSums<typename Rule::Real, kChunked> {
  using Real = typename Rule::Real;
  using Base = FloatSums<Real, kChunked>;
  using Base::job_;
  using Base::kGroup;
  using Base::kSeen;
  using Base::kSide;
  using Base::place;
  using Base::scale_;
  using Base::seen_;
  using Base::sum_;
  using Base::thread_;

 public:
  using typename Base::Map;
  using typename Base::Stage;
  // Blocks that a processor must hold: two leave 128 registers a thread.
  static constexpr int kBlocks = kChunked || kTables || sizeof(Real) == 8 ? 1 : 2;
  struct Shared {
    alignas(16) Real left[2][kDepth][Map::kLanes];
    alignas(16) Real right[2][kDepth][Map::kLanes];
    int redo;
  };

  LPK_HD FastTile(const Job& job, int64_t tile, int thread)
      : Base(job, tile, thread),
        rule_(job.acc.fmt, job.plan->shift),
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
    if (kTables) {
      LPK_UNROLL
      for (int e = 0; e < 4; ++e) {
        shared->left[buffer][step][Map::fetched_lane(thread_, e, false)] = left[e];
        shared->right[buffer][step][Map::fetched_lane(thread_, e, false)] = right[e];
      }
    } else {
      store_four(&shared->left[buffer][step][Map::fetched_lane(thread_, 0, true)], left);
      store_four(&shared->right[buffer][step][Map::fetched_lane(thread_, 0, true)], right);
    }
  }

  // All of a stage: what it has not are zeros, which leave every certified sum as it is.
  LPK_HD void multiply(const Shared* shared, int buffer, const Stage&) {
    LPK_UNROLL
    for (int step = 0; step < kDepth; ++step) {
      Real a[kSide], b[kSide];
      LPK_UNROLL
      for (int i = 0; i < kSide; i += kGroup) {
        load_group(&shared->left[buffer][step][Map::row(thread_, i)], a + i);
        load_group(&shared->right[buffer][step][Map::col(thread_, i)], b + i);
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
    this->store(shared, Rule::kLosesZeros || (Rule::kSigned && job_.plan->signs));
  }

 private:
  Rule rule_;
  static constexpr Reading kReading = kTables ? Reading::kTables : Reading::kFours;
  // Sums in double leave no registers for that.
  static constexpr bool kKeeps = sizeof(Real) == 4;
  OperandFetch<Map, kReading, Beyond::kZero, kKeeps> left_;
  OperandFetch<Map, kReading, Rule::kBeyond, kKeeps> right_;
};

}  // namespace lpk::cuda
