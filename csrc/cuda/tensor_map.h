// Which thread of a tensor core tile does what: pure index maps, for the kernel and for tests.
//
// 128 x 128 outputs, eight warps of 64 x 32: four by four fragments of mma.sync.m16n8k16. Shared
// memory has a stage of an operand by steps, then lanes, 16 bits each; eight lanes are a chunk. The
// chunks of a row change places with its step, so that the eight rows of a chunk that ldmatrix
// reads at a time lie in different banks.
#pragma once

#include "tiles.h"

namespace lpk::cuda {

struct TensorMap {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 128;
  static constexpr int kSteps = 32;
  static constexpr int kChunk = 8;
  static constexpr int kRows = 4, kCols = 4;  // fragments of a warp
  static constexpr int kOutputs = kRows * kCols * 4;

  LPK_HD static int group(int thread) { return thread % 32 / 4; }
  LPK_HD static int place(int thread) { return thread % 4; }
  LPK_HD static int first_row(int thread) { return thread / 128 * 64; }
  LPK_HD static int first_col(int thread) { return thread / 32 % 4 * 32; }

  // Output n of a thread: four of each fragment (i, j), n = (i kCols + j) 4 + word.
  LPK_HD static int row(int thread, int n) {
    return first_row(thread) + n / (4 * kCols) * 16 + group(thread) + n % 4 / 2 * 8;
  }
  LPK_HD static int col(int thread, int n) {
    return first_col(thread) + n / 4 % kCols * 8 + 2 * place(thread) + n % 2;
  }

  // Where a step of a lane lies in a stage.
  LPK_HD static int half_at(int step, int lane) {
    return step * kLanes + ((lane / kChunk) ^ (step % kChunk)) * kChunk + lane % kChunk;
  }

  // The rows of eight lanes that the threads of a warp name for four matrices of 8 x 8: of steps
  // 16 h .. 16 h + 15 of the left operand those of fragment i, in the order of its words; of the
  // right one those of fragments 2 j and 2 j + 1. Two chunks on is another place in the same row.
  LPK_HD static int left_start(int thread) {
    const int step = thread / 16 % 2 * 8 + thread % 8;
    return half_at(step, first_row(thread) + thread / 8 % 2 * 8);
  }
  LPK_HD static int right_start(int thread) {
    const int step = thread / 8 % 2 * 8 + thread % 8;
    return half_at(step, first_col(thread) + thread / 16 % 2 * 8);
  }
  LPK_HD static int row_at(int start, int fragment, int h) {
    return (start ^ (2 * kChunk * fragment)) + 16 * kLanes * h;
  }

  // What a thread copies of a stage: chunks e = 0, 1 of the same lanes, 16 steps apart.
  static constexpr int kCopied = kSteps * kLanes / kChunk / kThreads;
  LPK_HD static int copied_step(int thread, int e) { return thread / 16 + 16 * e; }
  LPK_HD static int copied_lane(int thread) { return thread % 16 * kChunk; }

  // What it looks up: two neighbouring lanes of eight steps.
  static constexpr int kFetched = 8;
  LPK_HD static int fetched_step(int thread, int e) { return thread / 64 * kFetched + e; }
  LPK_HD static int fetched_lane(int thread) { return thread % 64 * 2; }
};

}  // namespace lpk::cuda
