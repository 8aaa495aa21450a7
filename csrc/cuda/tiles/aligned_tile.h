// Sums of whole blocks of products cut to a common place (common/orders.h).
//
// A block is read twice: for its largest magnitude, and to be added. If it fits, both happen in one
// stage.
#pragma once

#include "ordered_tile.h"

namespace lpk::cuda {

// Consecutive runs of at most kDepth steps that never cross the end of an aligned block or of a
// chunk. The runs of a block with more steps come twice: the block is measured, then added. kTurns:
// where blocks take turns in a run (common/orders.h), each of them has all stages of the run, and
// takes() says which of the steps are the block's own.
template <bool kTurns>
class RunStages {
 public:
  static constexpr int kAhead = 0;
  LPK_HD explicit RunStages(const Job& job) : job_(&job) { enter_chunk(); }

  LPK_HD bool left() const { return chunk_ < job_->chunks; }
  LPK_HD int chunk() const { return chunk_; }
  LPK_HD int first() const { return first_; }
  LPK_HD int count() const { return end_ - first_ < kDepth ? end_ - first_ : kDepth; }
  LPK_HD bool measures() const { return !again_; }
  LPK_HD bool adds() const { return again_ || end_ - begin_ <= kDepth; }
  // Whether this stage is the first or the last of a walk over its block, to measure it or to add
  // it.
  LPK_HD bool begins() const { return first_ == begin_; }
  LPK_HD bool ends() const { return end_ - first_ <= kDepth; }
  LPK_HD bool closes() const { return adds() && ends() && end_ == steps_.end && last_turn(); }
  // The first position of the block.
  LPK_HD int64_t key() const { return kTurns ? key_ + first_of_turn(turn_) : key_; }
  // Whether the step at a position belongs to the block.
  LPK_HD bool takes(int64_t at) const { return !kTurns || turn_of(at - key_, job_->acc) == turn_; }

  LPK_HD RunStages following() const {
    RunStages next = *this;
    if (!ends()) {
      next.first_ += kDepth;
    } else if (!adds()) {
      next.first_ = begin_;
      next.again_ = true;
    } else if (!last_turn()) {
      next.first_ = begin_;
      next.again_ = false;
      ++next.turn_;
    } else if (end_ < steps_.end) {
      next.enter_block(end_);
    } else {
      ++next.chunk_;
      next.enter_chunk();
    }
    return next;
  }

 private:
  LPK_HD void enter_chunk() {
    steps_ = chunk_steps(*job_, chunk_);
    enter_block(steps_.first);
  }
  LPK_HD void enter_block(int step) {
    first_ = begin_ = end_ = step;
    again_ = false;
    turn_ = 0;
    if (!left() || step >= steps_.end) return;
    const int64_t start = int64_t{chunk_} * job_->acc.chunk;
    const int64_t at = position(step);
    key_ = at - (at - start) % run();
    end_ = first_from(key_ + run());
  }
  LPK_HD bool last_turn() const { return !kTurns || turn_ + 1 == job_->acc.interleaved; }
  LPK_HD int64_t run() const { return kTurns ? job_->acc.positions_together() : job_->acc.block; }
  LPK_HD int64_t position(int step) const {
    const int64_t* positions = job_->sums.positions;
    return positions == nullptr ? step : positions[step];
  }
  // The first step of the chunk whose position is not below `at`. It is one of the next run().
  LPK_HD int first_from(int64_t at) const {
    int low = begin_ + 1;
    int high = steps_.end - begin_ < run() ? steps_.end : begin_ + static_cast<int>(run());
    while (low < high) {
      const int middle = (low + high) / 2;
      if (position(middle) < at) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  const Job* job_;
  Span steps_{0, 0};  // of the chunk
  int chunk_ = 0;
  int begin_ = 0, end_ = 0;  // of the block
  int first_ = 0;
  bool again_ = false;
  int64_t turn_ = 0;
  int64_t key_ = 0;
};
using BlockStages = RunStages<false>;

template <bool kNearest>
class AlignedTile : public OrderedTile<kNearest> {
  using Base = OrderedTile<kNearest>;
  using Base::job_;
  using Base::kOutputs;
  using Base::thread_;

 public:
  using Stage = BlockStages;
  struct Shared : OrderedShared {
    Kept<double> largest, total;
    Kept<uint32_t> seen;
  };
  using Base::Base;

  LPK_HD void begin(Shared* shared) const { this->begin_sums(shared); }

  LPK_HD void multiply(Shared* shared, int buffer, const BlockStages& stage) const {
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) {
      if (stage.measures()) measure(shared, buffer, stage, n);
      if (stage.adds()) add_block(shared, buffer, stage, n);
    }
  }

  LPK_HD void close(Shared* shared, int64_t chunk) const {
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) this->close_sum(shared, n, chunk);
  }

 private:
  // `seen` has kPresent if there is a product, and the top bit if an addend has a minus sign.
  static constexpr uint32_t kPresent = 1;

  LPK_HD static double magnitude(double x) {
    return Lanes<double>::value(Lanes<double>::bits(x) & ~kSignBit);
  }
  LPK_HD static uint32_t sign(double x) {
    return static_cast<uint32_t>(Lanes<double>::bits(x) >> 32) & 0x80000000u;
  }

  LPK_HD void measure(Shared* shared, int buffer, const BlockStages& stage, int n) const {
    const double sum = shared->sum[n][thread_];
    double largest = stage.begins() ? magnitude(sum) : shared->largest[n][thread_];
    uint32_t seen = stage.begins() ? sign(sum) : shared->seen[n][thread_];
    LPK_LOOP
    for (int step = 0; step < stage.count(); ++step) {
      const double p = product_at(shared, buffer, stage, step, n);
      if (absent(p)) continue;
      largest = Lanes<double>::max(magnitude(p), largest);
      seen |= kPresent | sign(p);
    }
    shared->largest[n][thread_] = largest;
    shared->seen[n][thread_] = seen;
  }

  LPK_HD void add_block(Shared* shared, int buffer, const BlockStages& stage, int n) const {
    const Accumulator& acc = job_.acc;
    const AlignedPlace<double> place(shared->largest[n][thread_], acc.aligned_bits);
    double total = stage.begins() ? place.cut(shared->sum[n][thread_]) : shared->total[n][thread_];
    LPK_LOOP
    for (int step = 0; step < stage.count(); ++step) {
      const double p = product_at(shared, buffer, stage, step, n);
      if (!absent(p)) total += place.cut(p);
    }
    shared->total[n][thread_] = total;
    const uint32_t seen = shared->seen[n][thread_];
    if (!stage.ends() || (seen & kPresent) == 0) return;
    const double sum = place.sum_of(total, static_cast<int64_t>(seen) << 32, acc.rounding);
    shared->sum[n][thread_] = static_cast<float>(this->rounded(sum, n, stage.key()));
  }

  LPK_HD double product_at(const Shared* shared, int buffer, const BlockStages& stage, int step,
                           int n) const {
    return this->product(shared, buffer, step, n, this->position(stage.first() + step));
  }
};

}  // namespace lpk::cuda
