// The work of each thread of a tensor core tile: pure index maps, for the kernel and for tests.
//
// A tile has 128 x 128 outputs, 128 x 64 or 64 x 128. Each warp has 64 x 32 of them: four by four
// fragments of mma.sync.m16n8k16. Shared memory holds a stage of an operand by steps, then lanes,
// with 16 bits each; eight lanes are a chunk. The chunks of a row change places with the row's
// step, so that the eight rows of a chunk that ldmatrix reads at a time lie in different banks.
#pragma once

#include "cuda/product/tiles.h"

namespace lpk::cuda {

constexpr int kTensorSteps = 32;
constexpr int kLaneChunk = 8;

// A stage of one operand.
template <int kLaneCount, int kThreads>
struct TensorStage {
  static constexpr int kLanes = kLaneCount;

  // Where a step of a lane lies.
  LPK_HD static int half_at(int step, int lane) {
    return step * kLanes + ((lane / kLaneChunk) ^ (step % kLaneChunk)) * kLaneChunk +
           lane % kLaneChunk;
  }

  // Where the rows of eight lanes lie that the threads of a warp name for four matrices of 8 x 8.
  // They are counted from the rows of the warp's first fragments: two chunks further is another
  // place in the same row.
  LPK_HD static int row_at(int start, int fragment, int h) {
    return (start ^ (2 * kLaneChunk * fragment)) + 16 * kLanes * h;
  }

  // A thread's copies: chunks of the same lanes, kCopiedApart steps apart.
  static constexpr int kCopied = kTensorSteps * kLanes / kLaneChunk / kThreads;
  static constexpr int kCopiedApart = kTensorSteps / kCopied;
  static_assert(kCopiedApart % kLaneChunk == 0, "chunks in the same place of their rows");
  LPK_HD static int copied_step(int thread, int e) {
    return thread / (kLanes / kLaneChunk) + kCopiedApart * e;
  }
  LPK_HD static int copied_lane(int thread) { return thread % (kLanes / kLaneChunk) * kLaneChunk; }

  // A thread's look-ups: two neighbouring lanes of several steps in a row.
  static constexpr int kFetched = kTensorSteps * kLanes / 2 / kThreads;
  LPK_HD static int fetched_step(int thread, int e) { return thread / (kLanes / 2) * kFetched + e; }
  LPK_HD static int fetched_lane(int thread) { return thread % (kLanes / 2) * 2; }
};

template <int kTileRows, int kTileCols>
struct TensorMap {
  static constexpr int kThreads = kTileRows / 64 * (kTileCols / 32) * 32;
  static constexpr int kRows = 4, kCols = 4;  // fragments of a warp
  static constexpr int kOutputs = kRows * kCols * 4;
  using Left = TensorStage<kTileRows, kThreads>;
  using Right = TensorStage<kTileCols, kThreads>;

  LPK_HD static int group(int thread) { return thread % 32 / 4; }
  LPK_HD static int place(int thread) { return thread % 4; }
  LPK_HD static int first_row(int thread) { return thread / kTileCols * 64; }
  LPK_HD static int first_col(int thread) { return thread / 32 % (kTileCols / 32) * 32; }

  // Output n of a thread. Each fragment (i, j) has four of them: n = (i kCols + j) 4 + word.
  LPK_HD static int row(int thread, int n) {
    return first_row(thread) + n / (4 * kCols) * 16 + group(thread) + n % 4 / 2 * 8;
  }
  LPK_HD static int col(int thread, int n) {
    return first_col(thread) + n / 4 % kCols * 8 + 2 * place(thread) + n % 2;
  }

  // Where the row begins that a thread names, one of steps 16 h .. 16 h + 15. In the left operand
  // it is a row of fragment i, in the order of the fragment's words; in the right operand it is a
  // row of fragments 2 j and 2 j + 1.
  LPK_HD static int left_start(int thread) {
    const int step = thread / 16 % 2 * 8 + thread % 8;
    return Left::half_at(step, first_row(thread) + thread / 8 % 2 * 8);
  }
  LPK_HD static int right_start(int thread) {
    const int step = thread / 8 % 2 * 8 + thread % 8;
    return Right::half_at(step, first_col(thread) + thread / 16 % 2 * 8);
  }
};

}  // namespace lpk::cuda
