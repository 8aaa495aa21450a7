// The universal tile: every format, every mode, sums made odd in double (common/accumulate.h).
//
//   inner <- round(inner + round_product(a b))                for the steps of a chunk, in order
//   outer <- round_outer(outer + inner), inner <- +0          at the end of every chunk
//   out   <- round_result(round_outer(outer + bias))
//
// One ExactTile is one thread's part of a block of 256 threads; barriers separate its phases. The
// host runs the same code as the device: csrc/tests runs it thread by thread.
#pragma once

#include "cuda/product/tiles.h"
#include "cuda/product/totals.h"
#include "cuda/rules/float_steps.h"
#include "shared.h"

namespace lpk::cuda {

// An absent tap among doubles: a NaN that no operation gives.
constexpr int64_t kAbsentDouble = 0x7ff8dead00000000;
LPK_HD double absent_double() { return Lanes<double>::value(kAbsentDouble); }
LPK_HD bool absent(double x) {
  return static_cast<int32_t>(Lanes<double>::bits(x) >> 32) ==
         static_cast<int32_t>(kAbsentDouble >> 32);
}

// One thread's part of a tile: kSide x kSide outputs, numbered row by row.
template <int kSide>
class ExactOperands {
 public:
  using Map = BlockMap<kSide, 2>;
  static constexpr int kOutputs = kSide * kSide;
  static constexpr int kFetched = Map::kFetched;

  LPK_HD ExactOperands(const Job& job, int64_t tile, int thread)
      : job_(job), thread_(thread), at_(place_of(job.sums, Map::kLanes, tile)) {
    left_ = job.sums.left.batch[at_.matrix];
    right_ = job.sums.right.batch[at_.matrix];
  }

  // Brings the elements of a stage from memory to registers; lanes and steps beyond the end are
  // zeros.
  LPK_HD void fetch(const Stages& stage) {
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

// The memory that the threads of a block share.
template <int kSide>
struct ExactShared {
  using Map = BlockMap<kSide, 2>;
  alignas(16) double left[2][kDepth][Map::kLanes];
  alignas(16) double right[2][kDepth][Map::kLanes];
  // Sums between steps, inner and outer ones; each thread has its own.
  float inner[kSide * kSide][Map::kThreads];
  float outer[kSide * kSide][Map::kThreads];
};

// Draws of one site for a thread's outputs; words below 2^32.
template <int kSide>
struct TileDraws {
  uint32_t column[kSide], add[kSide], flip[kSide];
  uint32_t mixed[kSide];

  LPK_HD void start(uint64_t seed, uint32_t site, const uint64_t (&rows)[kSide],
                    const uint64_t (&cols)[kSide]) {
    const uint64_t base = site_base(seed, site);
    for (int i = 0; i < kSide; ++i) {
      const RowKey key = row_key(base, rows[i], 0);
      add[i] = key.add;
      flip[i] = key.flip;
      column[i] = column_key(base, cols[i]);
    }
  }
  LPK_HD void seek(uint32_t word) {
    LPK_UNROLL
    for (int i = 0; i < kSide; ++i) mixed[i] = mix32(add[i] + word) ^ flip[i];
  }
  LPK_HD uint32_t word(int i, int j) const { return mix32(column[j] + mixed[i]); }
};

// kRounds: products are rounded, in any format and mode.
template <int kSide, Rounding kMode, bool kRounds>
class ExactTile : public ExactOperands<kSide> {
  using Base = ExactOperands<kSide>;
  using Base::at_;
  using Base::job_;
  using Base::kOutputs;
  using Base::thread_;

 public:
  using Shared = ExactShared<kSide>;
  using typename Base::Map;
  using Stage = Stages;
  static constexpr bool kStochastic = kMode == Rounding::kStochastic;

  LPK_HD ExactTile(const Job& job, int64_t tile, int thread) : Base(job, tile, thread) {
    for (int i = 0; i < kSide; ++i) {
      for (int j = 0; j < kSide; ++j) sum_[i][j] = 0.0;
    }
    if (!draws_sums() && !draws_products()) return;
    seed_ = job.use_seed();
    uint64_t rows[kSide], cols[kSide];
    for (int i = 0; i < kSide; ++i) {
      rows[i] = this->row_id(at_.row + Map::row(thread, i));
      cols[i] = this->col_id(at_.col + Map::col(thread, i));
    }
    if (draws_sums()) sums_.start(seed_, kSiteSum, rows, cols);
    if (draws_products()) products_.start(seed_, kSiteProduct, rows, cols);
  }

  LPK_HD void begin(Shared* shared) {
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) shared->outer[n][thread_] = this->started(n);
    if (job_.sums.initial == nullptr || job_.acc.chunk != 0) return;
    LPK_UNROLL
    for (int n = 0; n < kOutputs; ++n) sum_[n / kSide][n % kSide] = shared->outer[n][thread_];
  }

  LPK_HD void multiply(const Shared* shared, int buffer, const Stages& stage) {
    const int count = stage.count();
    LPK_LOOP
    for (int step = 0; step < count; ++step) {
      double a[kSide], b[kSide];
      LPK_UNROLL
      for (int i = 0; i < kSide; i += 2) {
        read_shared<2>(&shared->left[buffer][step][Map::row(thread_, i)], a + i);
        read_shared<2>(&shared->right[buffer][step][Map::col(thread_, i)], b + i);
      }
      add_products(a, b, stage.first() + step);
    }
  }

  // Ends a chunk. The threads need no barrier, because each has sums of its own.
  LPK_HD void close(Shared* shared, int64_t chunk) {
    if (job_.acc.chunk == 0) return;
    leave(shared);
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) {
      shared->outer[n][thread_] =
          this->closed_chunk(n, shared->outer[n][thread_], shared->inner[n][thread_], chunk);
    }
  }

  LPK_HD void finish(Shared* shared) {
    if (job_.acc.chunk == 0) leave(shared);
    const float (*sums)[Map::kThreads] = job_.acc.chunk == 0 ? shared->inner : shared->outer;
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) this->store(n, sums[n][thread_]);
  }

 private:
  LPK_HD bool draws_sums() const { return kStochastic; }
  LPK_HD bool draws_products() const {
    return kRounds && job_.acc.product_rounding == Rounding::kStochastic;
  }
  LPK_HD void add_products(const double (&a)[kSide], const double (&b)[kSide], int64_t step) {
    uint64_t k = 0;
    if (draws_sums() || draws_products()) {
      k = static_cast<uint64_t>(this->position(step));
      const DrawLayout layout = draw_layout(job_.acc.random_bits);
      if (draws_sums()) sums_.seek(static_cast<uint32_t>(layout.word_of(k)));
      if (draws_products()) products_.seek(static_cast<uint32_t>(layout.word_of(k)));
    }
    LPK_UNROLL
    for (int i = 0; i < kSide; ++i) {
      LPK_UNROLL
      for (int j = 0; j < kSide; ++j) {
        const double next = added(sum_[i][j], a[i], b[j], i, j, k);
        const bool left_out = absent(a[i]), right_out = absent(b[j]);
        sum_[i][j] = (left_out | right_out) ? sum_[i][j] : next;
      }
    }
  }

  LPK_HD double added(double sum, double a, double b, int i, int j, uint64_t k) const {
    const Accumulator& acc = job_.acc;
    double product = a * b;
    if (kRounds) {
      const double threshold =
          draws_products() ? step_threshold(products_, kSiteProduct, i, j, k) : 0.0;
      product = round_to<double>(product, acc.product, acc.product_rounding, threshold);
    }
    if (kMode == Rounding::kNearestEven && acc.fmt.kind == Kind::kFloat && acc.fmt.man_bits > 0 &&
        !acc.fmt.is_unsigned)
      return round_to_float_nearest_even<double>(odd_sum<double>(sum, product), acc.fmt);
    const double threshold = kStochastic ? step_threshold(sums_, kSiteSum, i, j, k) : 0.0;
    return add_rounded<double>(sum, product, acc.fmt, kMode, threshold);
  }

  // The threshold of output (i, j) at position k of the sums.
  LPK_HD double step_threshold(const TileDraws<kSide>& draws, uint32_t site, int i, int j,
                               uint64_t k) const {
    const Accumulator& acc = job_.acc;
    const DrawLayout layout = draw_layout(acc.random_bits);
    const uint32_t word =
        acc.rng == Rng::kPhilox
            ? philox_word(seed_, site, this->row_id(at_.row + Map::row(thread_, i)),
                          this->col_id(at_.col + Map::col(thread_, j)), layout.word_of(k))
            : draws.word(i, j);
    const uint32_t draw = (word >> layout.shift_of(k)) & layout.mask();
    return stochastic_threshold<double>(draw, acc.random_bits);
  }

  // Leaves the inner sums where a loop can index them; the sums begin again at zero.
  LPK_HD void leave(Shared* shared) {
    LPK_UNROLL
    for (int i = 0; i < kSide; ++i) {
      LPK_UNROLL
      for (int j = 0; j < kSide; ++j) {
        shared->inner[i * kSide + j][thread_] = static_cast<float>(sum_[i][j]);
        sum_[i][j] = 0.0;
      }
    }
  }

  uint64_t seed_ = 0;
  double sum_[kSide][kSide];
  TileDraws<kSide> sums_, products_;
};

}  // namespace lpk::cuda
