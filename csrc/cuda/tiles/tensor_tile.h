// Order "native": tensor cores make the sums of chunks, in float32, from operands in half precision
// or bfloat16 that holds their values. The additions between chunks are those of outer_rule.h.
//
//   part  <- part + A B              the steps of a chunk, 16 at a time, in the hardware's order
//   outer <- round(outer + part)     at the end of every chunk, part <- +0
//
// Inside a chunk only sums that are exact in float32 are defined, and absent taps are zeros. No
// tile is done again. Operands come as halves (tensor_operands.h). Where sums are split, the parts
// go to memory instead (parts.h).
#pragma once

#include <type_traits>

#include "cuda/operands/tensor_operands.h"
#include "cuda/product/parts.h"

namespace lpk::cuda {

// Stages of operands without tables. They are copied two ahead.
class CopiedStages {
 public:
  static constexpr int kAhead = 2;

  LPK_HD CopiedStages(const Job& job, const Work& work)
      : job_(&job), chunk_(work.first), last_(start_of(work.end)) {
    enter(start_of(work.first));
  }
  LPK_HD bool left() const { return first_ < last_; }
  LPK_HD int chunk() const { return chunk_; }
  LPK_HD int first() const { return first_; }
  LPK_HD int count() const { return end_ - first_ < kTensorSteps ? end_ - first_ : kTensorSteps; }
  LPK_HD bool closes() const { return end_ - first_ <= kTensorSteps; }
  LPK_HD CopiedStages following() const {
    CopiedStages next = *this;
    next.first_ += kTensorSteps;
    if (next.first_ >= end_) {
      ++next.chunk_;
      next.enter(end_);
    }
    return next;
  }

 private:
  LPK_HD int length() const { return static_cast<int>(job_->sums.k); }
  LPK_HD int start_of(int chunk) const {
    return chunk < job_->chunks ? chunk * job_->span : length();
  }
  LPK_HD void enter(int first) {
    first_ = first;
    end_ = length() - first < job_->span ? length() : first + job_->span;
  }

  const Job* job_;
  int chunk_, last_, first_ = 0, end_ = 0;
};

// Keeps x in a register. The compiler would rather compute it again in every stage.
LPK_HD int kept_in_register(int x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

template <bool kBfloat16, bool kTables, int kTileRows, int kTileCols>
class TensorTile {
 public:
  using Map = TensorMap<kTileRows, kTileCols>;
  using Left = typename Map::Left;
  using Right = typename Map::Right;
  static constexpr int kSteps = kTensorSteps;
  using Stage = std::conditional_t<kTables, StagesOf<kSteps>, CopiedStages>;
  template <class Side>
  using Share = std::conditional_t<kTables, PairLookups<Side>, ChunkCopies<Side>>;
  static constexpr bool kExact = false;
  static constexpr bool kTakesTurns = kTables;
  // A thread has 256 registers.
  static constexpr int kBlocks = 256 / Map::kThreads;
  static constexpr int kBuffers = kTables ? 2 : Stage::kAhead + 1;
  struct Shared {
    alignas(128) uint16_t left[kBuffers][kSteps * kTileRows];
    alignas(128) uint16_t right[kBuffers][kSteps * kTileCols];
  };

  LPK_HD TensorTile(const Job& job, const Work& work, int thread)
      : job_(job),
        thread_(thread),
        work_(work),
        rule_(job.acc, work.plan.closing),
        left_(job.sums.left, job.left_halves, place().matrix, place().row, job.sums.m, thread),
        right_(job.sums.right, job.right_halves, place().matrix, place().col, job.sums.n, thread) {
    for (int i = 0; i < Map::kRows; ++i)
      left_at_[i] = kept_in_register(Left::row_at(Map::left_start(thread), i, 0));
    for (int j = 0; j < Map::kCols / 2; ++j)
      right_at_[j] = kept_in_register(Right::row_at(Map::right_start(thread), j, 0));
    if (job.parts != nullptr) {
      const int first = chunk_steps(job, work.first).first;
      left_.skip(job.sums.left, first);
      right_.skip(job.sums.right, first);
    }
    for (int i = 0; i < Map::kRows; ++i) {
      for (int n = 0; n < kRowOutputs; ++n) part_[i][n] = 0.0f;
      for (int n = 0; n < kKept; ++n) outer_[i][n] = 0.0f;
    }
  }

  LPK_HD void begin(Shared*) const {}
  LPK_HD void start(Shared* shared, int buffer, const Stage& stage) {
    if (stage.left()) {
      left_.start(job_.sums.left, stage.count(), shared->left[buffer]);
      right_.start(job_.sums.right, stage.count(), shared->right[buffer]);
    }
    end_copies();
  }
  LPK_HD void await() const { await_copies<kBuffers - 2>(); }
  LPK_HD void fetch(const Stage& stage) {
    left_.fetch(job_.sums.left, stage);
    right_.fetch(job_.sums.right, stage);
  }
  LPK_HD void put(Shared* shared, int buffer) const {
    left_.put(shared->left[buffer]);
    right_.put(shared->right[buffer]);
  }

  LPK_HD void multiply(const Shared* shared, int buffer, const Stage& stage) {
    LPK_UNROLL
    for (int h = 0; h < kSteps / 16; ++h) {
      if (16 * h < stage.count()) multiply_sixteen(shared->left[buffer], shared->right[buffer], h);
    }
  }

  LPK_HD void close(Shared*, [[maybe_unused]] int chunk) {
    if (job_.parts != nullptr) return keep_parts(chunk);
    LPK_UNROLL
    for (int i = 0; i < Map::kRows; ++i) {
      if constexpr (kTables) {
        float outer[kRowOutputs];
        LPK_UNROLL
        for (int n = 0; n < kRowOutputs; ++n) outer[n] = chunk == 0 ? 0.0f : *outer_at(i, n);
        rule_.add(outer, part_[i]);
        LPK_UNROLL
        for (int n = 0; n < kRowOutputs; ++n) *outer_at(i, n) = outer[n];
      } else {
        rule_.add(outer_[i], part_[i]);
      }
      LPK_UNROLL
      for (int n = 0; n < kRowOutputs; ++n) part_[i][n] = 0.0f;
    }
  }

  LPK_HD void finish(Shared*) const {
    if (job_.parts != nullptr) return;
    const Sums& s = job_.sums;
    const Place at = place();
    float* out = s.out + s.batch[at.matrix];
    LPK_UNROLL
    for (int i = 0; i < Map::kRows; ++i) {
      LPK_UNROLL
      for (int n = 0; n < kRowOutputs; ++n) {
        const int64_t row = at.row + Map::row(thread_, i * kRowOutputs + n);
        const int64_t col = at.col + Map::col(thread_, i * kRowOutputs + n);
        if (row < s.m && col < s.n) out[s.rows[row] + s.cols[col]] = canonical_float(outer(i, n));
      }
    }
  }

  LPK_HD void report(const Shared*) const {
    if (thread_ == 0) report_piece(job_, work_, false);
  }

 private:
  // How many outputs a row of fragments has. Outer sums stay in registers. Where tables need these
  // registers, outer sums lie in memory, where each thread has its own.
  static constexpr int kRowOutputs = 4 * Map::kCols;
  static constexpr int kKept = kTables ? 1 : kRowOutputs;

  LPK_HD Place place() const { return place_of(job_.sums, kTileRows, kTileCols, work_.tile); }
  LPK_HD float* outer_at(int i, int n) const {
    return job_.outer +
           (int64_t{work_.place} * Map::kOutputs + i * kRowOutputs + n) * Map::kThreads + thread_;
  }
  LPK_HD float outer(int i, int n) const {
    if constexpr (kTables) return *outer_at(i, n);
    return outer_[i][n];
  }

  LPK_HD void keep_parts(int chunk) {
    const Parts parts(job_, chunk, place(), kTileRows, kTileCols);
    LPK_UNROLL
    for (int n = 0; n < Map::kOutputs; ++n) {
      float& sum = part_[n / kRowOutputs][n % kRowOutputs];
      parts.keep(Map::row(thread_, n), Map::col(thread_, n), sum);
      sum = 0.0f;
    }
  }

  LPK_HD void multiply_sixteen(const uint16_t* left, const uint16_t* right, int h) {
    uint32_t a[Map::kRows][4], b[Map::kCols / 2][4];
    LPK_UNROLL
    for (int j = 0; j < Map::kCols / 2; ++j)
      read_matrices(right + Right::row_at(right_at_[j], 0, h), b[j]);
    LPK_UNROLL
    for (int i = 0; i < Map::kRows; ++i)
      read_matrices(left + Left::row_at(left_at_[i], 0, h), a[i]);
#if defined(__CUDA_ARCH__)
    LPK_UNROLL
    for (int i = 0; i < Map::kRows; ++i) {
      LPK_UNROLL
      for (int j = 0; j < Map::kCols; ++j)
        multiply_fragment(a[i], b[j / 2] + j % 2 * 2, part_[i] + 4 * j);
    }
#else
    multiply_step_by_step(left, right, h);
#endif
  }

#if defined(__CUDA_ARCH__)
  __device__ __forceinline__ static void multiply_fragment(const uint32_t* a, const uint32_t* b,
                                                           float* sum) {
    if (kBfloat16) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
#else
  // Repeats the instructions step by step, from the rows that the threads of the warp name. In a
  // fragment of the left operand, word w of lane l holds row l / 4 + w % 2 * 8 and two steps: 2 (l
  // % 4) + w / 2 * 8 and the next. In a fragment of the right operand, it holds column l / 4 and
  // two steps: 2 (l % 4) + w * 8 and the next (PTX ISA, "Matrix fragments for mma.m16n8k16 with
  // floating point type").
  void multiply_step_by_step(const uint16_t* left, const uint16_t* right, int h) {
    const int warp = thread_ / 32 * 32;
    const int lane = thread_ % 32;
    for (int n = 0; n < Map::kOutputs; ++n) {
      const int i = n / (4 * Map::kCols), j = n / 4 % Map::kCols, word = n % 4;
      const int row = lane / 4 + word / 2 * 8;
      const int col = lane % 4 * 2 + word % 2;
      float& sum = part_[i][n % kRowOutputs];
      // Outputs that are never stored are left out.
      if (place().row + Map::row(thread_, n) >= job_.sums.m) continue;
      if (place().col + Map::col(thread_, n) >= job_.sums.n) continue;
      for (int k = 0; k < 16; ++k) {
        // These are the matrix that has this step and row, or column, and the thread that names the
        // step's row.
        const int of_left = row / 8 + k / 8 * 2;
        const int of_right = k / 8 + j % 2 * 2;
        const int left_at = Map::left_start(warp + of_left * 8 + k % 8);
        const int right_at = Map::right_start(warp + of_right * 8 + k % 8);
        const uint16_t* a = left + Left::row_at(left_at, i, h) + row % 8;
        const uint16_t* b = right + Right::row_at(right_at, j / 2, h) + col;
        sum += wide_float<kBfloat16>(*a) * wide_float<kBfloat16>(*b);
      }
    }
  }
#endif

  const Job& job_;
  int thread_;
  const Work& work_;
  int left_at_[Map::kRows], right_at_[Map::kCols / 2];  // of each fragment's rows
  OuterRule rule_;
  Share<Left> left_;
  Share<Right> right_;
  float part_[Map::kRows][kRowOutputs], outer_[Map::kRows][kKept];
};

}  // namespace lpk::cuda
