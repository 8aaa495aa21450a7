// Who does what in a tile: pure index maps, for the kernels and for tests on the host.
#pragma once

#include "sums.h"

// Loops over a thread's registers must be unrolled; loops over much code must not.
#if defined(__CUDACC__)
#define LPK_UNROLL _Pragma("unroll")
#define LPK_UNROLL_STEPS _Pragma("unroll kStepsInARow")
#define LPK_LOOP _Pragma("unroll 1")
#else
#define LPK_UNROLL
#define LPK_UNROLL_STEPS
#define LPK_LOOP
#endif

namespace lpk::cuda {

// The steps that a kernel stages at a time.
constexpr int kDepth = 8;
// The side of the square tiles that certified kernels work on, and flag for redoing.
constexpr int64_t kTile = 128;

LPK_HD int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

// The steps of a chunk, from `first` to before `end`.
struct Span {
  int first, end;
};
LPK_HD Span chunk_steps(const Job& job, int chunk) {
  const int64_t* starts = job.acc.chunk == 0 ? nullptr : job.sums.starts;
  if (starts != nullptr && chunk < job.chunks)
    return {static_cast<int>(starts[chunk]), static_cast<int>(starts[chunk + 1])};
  // After the last chunk this is computed too, but not used. The product may then overflow, because
  // it is unsigned.
  const int first =
      static_cast<int>(static_cast<uint32_t>(chunk) * static_cast<uint32_t>(job.span));
  const int length = static_cast<int>(job.sums.k);
  return {first, length - first < job.span ? length : first + job.span};
}

// The tile that a block makes. place: the block's number among all blocks at work; each block has
// outer sums of its own in memory. The threads of a block share this, so that members that are
// seldom read need no registers.
struct Work {
  Plan plan;
  int32_t tile, place;
};

// Consecutive runs of at most kDepth steps that never cross the end of a chunk. A chunk without
// steps is a run without steps.
class Stages {
 public:
  LPK_HD explicit Stages(const Job& job) : job_(&job) { enter(); }

  LPK_HD bool left() const { return chunk_ < job_->chunks; }
  LPK_HD int chunk() const { return chunk_; }
  LPK_HD int first() const { return first_; }
  LPK_HD int count() const { return end_ - first_ < kDepth ? end_ - first_ : kDepth; }
  LPK_HD bool closes() const { return end_ - first_ <= kDepth; }
  LPK_HD Stages following() const {
    Stages next = *this;
    next.first_ += kDepth;
    if (next.first_ >= end_) {
      ++next.chunk_;
      next.enter();
    }
    return next;
  }

 private:
  LPK_HD void enter() {
    const Span steps = chunk_steps(*job_, chunk_);
    first_ = steps.first;
    end_ = steps.end;
  }

  const Job* job_;
  int chunk_ = 0, first_ = 0, end_ = 0;
};

// The stages of a sum without chunks.
class PlainStages {
 public:
  LPK_HD explicit PlainStages(const Job& job) : job_(&job) {}
  LPK_HD bool left() const { return first_ < length(); }
  LPK_HD int chunk() const { return 0; }
  LPK_HD int first() const { return first_; }
  LPK_HD int count() const { return length() - first_ < kDepth ? length() - first_ : kDepth; }
  LPK_HD bool closes() const { return false; }
  LPK_HD PlainStages following() const {
    PlainStages next = *this;
    next.first_ += kDepth;
    return next;
  }

 private:
  LPK_HD int length() const { return static_cast<int>(job_->sums.k); }

  const Job* job_;
  int first_ = 0;
};

// Where a tile of side x side outputs lies, by its number. Numbers count columns fastest, then
// rows, then matrices.
struct Place {
  int64_t matrix, row, col;
};
LPK_HD int64_t tile_count(const Sums& s, int64_t side) {
  return s.count * ceil_div(s.m, side) * ceil_div(s.n, side);
}
// Int is the type of the tile's number. Where it has 32 bits, the divisions have 32 bits too.
template <class Int>
LPK_HD Place place_of(const Sums& s, int64_t side, Int tile) {
  const Int across = static_cast<Int>(ceil_div(s.n, side));
  const Int down = static_cast<Int>(ceil_div(s.m, side));
  return {tile / across / down, tile / across % down * side, tile % across * side};
}
LPK_HD int64_t tile_at(const Sums& s, int64_t side, const Place& at) {
  return (at.matrix * ceil_div(s.m, side) + at.row / side) * ceil_div(s.n, side) + at.col / side;
}

// The row and the column of the draws of an output of a matrix; 0 where there is no such output.
LPK_HD uint64_t row_id(const Sums& s, int64_t matrix, int64_t row) {
  return row < s.m ? static_cast<uint64_t>(s.row_batch[matrix] + s.row_keys[row]) : 0;
}
LPK_HD uint64_t col_id(const Sums& s, int64_t matrix, int64_t col) {
  return col < s.n ? static_cast<uint64_t>(s.col_batch[matrix] + s.col_keys[col]) : 0;
}

// Whether certified kernels must look up where elements or steps lie. They need not where the lanes
// of both operands lie side by side.
LPK_HD bool reads_tables(const Sums& s) {
  const auto side_by_side = [](const Operand& o) {
    return o.lanes.at == nullptr && o.lanes.step == 1 && o.steps.at == nullptr;
  };
  return s.starts != nullptr || !side_by_side(s.left) || !side_by_side(s.right);
}

// A block of 16 x 16 threads, with kSide x kSide outputs a thread. A thread's lanes lie in groups
// of kGroup neighbours, and the groups of all threads lie side by side. So threads next to one
// another read neighbouring words of shared memory, and no two of them meet in a bank.
template <int kSide, int kGroup>
struct BlockMap {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 16 * kSide;

  LPK_HD static int lane(int place, int i) {
    return i / kGroup * (16 * kGroup) + place * kGroup + i % kGroup;
  }
  LPK_HD static int row(int thread, int i) { return lane(thread / 16, i); }
  LPK_HD static int col(int thread, int j) { return lane(thread % 16, j); }

  // A thread's share of a stage: kFetched elements of one step, `width` neighbours at a time. The
  // threads of a warp fetch elements that lie side by side.
  static constexpr int kFetched = kLanes * kDepth / kThreads;
  LPK_HD static int fetched_step(int thread) { return thread / 32; }
  LPK_HD static int fetched_lane(int thread, int e, int width) {
    return (thread % 32 + e / width * 32) * width + e % width;
  }
};

// Does a block's work from its first stage to its last; a stage is fetched to registers while the
// stage before is multiplied. All threads of a block do every phase: block.each(phase) has each
// thread do the phase on its own part, and block.sync() is a barrier.
template <class Stage, class Block>
LPK_HD void run_tile(const Stage& first, Block& block) {
  Stage stage = first;
  int buffer = 0;
  block.each([&](auto& part) {
    part.begin(block.shared());
    if (!stage.left()) return;
    part.fetch(stage);
    part.put(block.shared(), buffer);
  });
  block.sync();
  while (stage.left()) {
    const Stage next = stage.following();
    block.each([&](auto& part) {
      if (next.left()) part.fetch(next);
      part.multiply(block.shared(), buffer, stage);
      if (stage.closes()) part.close(block.shared(), stage.chunk());
      if (next.left()) part.put(block.shared(), buffer ^ 1);
    });
    block.sync();
    buffer ^= 1;
    stage = next;
  }
  block.each([&](auto& part) { part.finish(block.shared()); });
}

#if defined(__CUDACC__)
// A thread and what it shares with its block.
template <class Part>
class DeviceBlock {
 public:
  using Shared = typename Part::Shared;
  __device__ __forceinline__ DeviceBlock(Part* part, Shared* shared)
      : part_(part), shared_(shared) {}
  template <class Phase>
  LPK_HD void each(const Phase& phase) {
    phase(*part_);
  }
  LPK_HD void sync() {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }
  LPK_HD Shared* shared() { return shared_; }

 private:
  Part* part_;
  Shared* shared_;
};
#endif

}  // namespace lpk::cuda
