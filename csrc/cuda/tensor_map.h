// Which thread of a tensor core tile does what: pure index maps, for the kernel and for tests.
//
// 128 x 128 outputs, eight warps of 64 x 32: four by four fragments of mma.sync.m16n8k16. A word
// holds two steps of a lane, the first one in its lower half; shared memory has them by pairs of
// steps, then lanes, a row of pairs kRow words long, so that the 32 words that a warp reads for a
// fragment lie in 32 banks.
#pragma once

#include "tiles.h"

namespace lpk::cuda {

struct TensorMap {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 128;
  static constexpr int kRow = kLanes + 8;
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

  // Where the words of the fragments of steps 16 h .. 16 h + 15 lie in a stage.
  LPK_HD static int left_word(int thread, int i, int word, int h) {
    const int pair = 8 * h + place(thread) + word / 2 * 4;
    return pair * kRow + first_row(thread) + 16 * i + group(thread) + word % 2 * 8;
  }
  LPK_HD static int right_word(int thread, int j, int word, int h) {
    const int pair = 8 * h + place(thread) + word * 4;
    return pair * kRow + first_col(thread) + 8 * j + group(thread);
  }

  // What a thread fetches of every 16 steps of a stage: lanes e = 0 .. 3 of both steps of a pair.
  LPK_HD static int fetched_pair(int thread, int p) { return thread / 32 + 8 * p; }
  LPK_HD static int fetched_lane(int thread, int e, bool vectors) {
    return vectors ? thread % 32 * 4 + e : thread % 32 + 32 * e;
  }
};

}  // namespace lpk::cuda
