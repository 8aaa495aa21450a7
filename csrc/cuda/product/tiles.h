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

// A block's share of a product: piece `number`, the chunks from `first` to before `end` of a tile's
// sums. place: the block's number among all blocks at work; each block has outer sums of its own in
// memory. The threads of a block share this, so that members that are seldom read need no
// registers.
struct Work {
  Plan plan;
  int32_t number, tile, first, end, place;
};

// Consecutive runs of at most kSteps steps that never cross the end of a chunk. A chunk without
// steps is a run without steps.
template <int kSteps>
class StagesOf {
 public:
  // How many stages are on their way to shared memory while one is multiplied. 0: one stage is on
  // its way, through registers.
  static constexpr int kAhead = 0;

  LPK_HD explicit StagesOf(const Job& job) : StagesOf(job, {{}, 0, 0, 0, job.chunks, 0}) {}
  LPK_HD StagesOf(const Job& job, const Work& work)
      : job_(&job), chunk_(work.first), end_chunk_(work.end) {
    enter();
  }

  LPK_HD bool left() const { return chunk_ < end_chunk_; }
  LPK_HD int chunk() const { return chunk_; }
  LPK_HD int first() const { return first_; }
  LPK_HD int count() const { return end_ - first_ < kSteps ? end_ - first_ : kSteps; }
  LPK_HD bool closes() const { return end_ - first_ <= kSteps; }
  LPK_HD StagesOf following() const {
    StagesOf next = *this;
    next.first_ += kSteps;
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
  int chunk_, end_chunk_, first_ = 0, end_ = 0;
};
using Stages = StagesOf<kDepth>;

// The stages of a sum without chunks.
class PlainStages {
 public:
  static constexpr int kAhead = 0;

  LPK_HD PlainStages(const Job& job, const Work&) : job_(&job) {}
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

// Where a tile of rows x cols outputs lies, by its number. Numbers count columns fastest, then
// rows, then matrices. Tiles of one row cover the columns of all matrices one after another, then
// those of the next row.
struct Place {
  int64_t matrix, row, col;
};
LPK_HD int64_t tile_count(const Sums& s, int64_t rows, int64_t cols) {
  if (rows == 1) return s.m * ceil_div(s.count * s.n, cols);
  return s.count * ceil_div(s.m, rows) * ceil_div(s.n, cols);
}
LPK_HD int64_t tile_count(const Sums& s, int64_t side) { return tile_count(s, side, side); }
// Int is the type of the tile's number. Where it has 32 bits, the divisions have 32 bits too.
template <class Int>
LPK_HD Place place_of(const Sums& s, int64_t rows, int64_t cols, Int tile) {
  const Int across = static_cast<Int>(ceil_div(s.n, cols));
  const Int down = static_cast<Int>(ceil_div(s.m, rows));
  return {tile / across / down, tile / across % down * rows, tile % across * cols};
}
template <class Int>
LPK_HD Place place_of(const Sums& s, int64_t side, Int tile) {
  return place_of(s, side, side, tile);
}
// Output number `index` of a tile of one row. Behind the last matrix the place has a column that
// the last matrix does not have.
LPK_HD Place place_in_row(const Sums& s, int64_t cols, int32_t tile, int64_t index) {
  const auto across = static_cast<int32_t>(ceil_div(s.count * s.n, cols));
  const int64_t row = tile / across;
  const int64_t col = tile % across * cols + index;
  if (col >= s.count * s.n) return {s.count - 1, row, s.n};
  return {col / s.n, row, col % s.n};
}
LPK_HD int64_t tile_at(const Sums& s, int64_t rows, int64_t cols, const Place& at) {
  if (rows == 1) {
    const int64_t across = ceil_div(s.count * s.n, cols);
    return at.row * across + (at.matrix * s.n + at.col) / cols;
  }
  return (at.matrix * ceil_div(s.m, rows) + at.row / rows) * ceil_div(s.n, cols) + at.col / cols;
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
  static constexpr int kRows = kLanes, kCols = kLanes;
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

// Runs a tile whose stages are copied past the registers: kAhead stages are on their way while one
// is multiplied. A buffer is filled again after the barrier that follows its multiplication.
template <class Stages, class Block>
LPK_HD void run_ahead(const Stages& first, Block& block) {
  constexpr int kBuffers = Stages::kAhead + 1;
  const auto after = [](int buffer) { return buffer + 1 < kBuffers ? buffer + 1 : 0; };
  Stages stage = first, next = first;
  int buffer = 0, filled = 0;
  const auto start = [&](auto& part) { part.start(block.shared(), filled, next); };
  const auto started = [&] {
    filled = after(filled);
    if (next.left()) next = next.following();
  };
  block.each([&](auto& part) { part.begin(block.shared()); });
  for (int n = 0; n < Stages::kAhead; ++n) {
    block.each(start);
    started();
  }
  // There is a loop over chunks and one inside it, so that stages need not know what chunks close
  // into.
  while (stage.left()) {
    const int chunk = stage.chunk();
    bool last = false;
    while (!last) {
      block.each([](auto& part) { part.await(); });
      block.sync();
      block.each([&](auto& part) {
        start(part);
        part.multiply(block.shared(), buffer, stage);
      });
      started();
      buffer = after(buffer);
      last = stage.closes();
      stage = stage.following();
    }
    block.each([&](auto& part) { part.close(block.shared(), chunk); });
  }
  block.each([&](auto& part) { part.finish(block.shared()); });
}

// Runs a tile whose stages are fetched to registers while the stage before is multiplied.
template <class Stages, class Block>
LPK_HD void run_fetched(const Stages& first, Block& block) {
  Stages stage = first;
  int buffer = 0;
  block.each([&](auto& part) {
    part.begin(block.shared());
    if (!stage.left()) return;
    part.fetch(stage);
    part.put(block.shared(), buffer);
  });
  block.sync();
  while (stage.left()) {
    const Stages next = stage.following();
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

// Does a block's work from its first stage to its last. All threads of a block do every phase:
// block.each(phase) has each thread do the phase on its own part, and block.sync() is a barrier.
template <class Stages, class Block>
LPK_HD void run_tile(const Stages& first, Block& block) {
  if constexpr (Stages::kAhead > 0) {
    run_ahead(first, block);
  } else {
    run_fetched(first, block);
  }
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
