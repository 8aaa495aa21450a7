// A diagnosis of the sums inside a matrix product. It counts, step by step, the additions that
// change nothing and the values beyond the range. It is exact in every format and mode, for sums in
// sequence and in chunks, and slower than gemm.h.
#pragma once

#include <cstdint>

#include "cpu/drivers/tile.h"

namespace lpk {

struct EventCounts {
  int64_t swamped;         // of products: nonzero ones that left the sum as it was
  int64_t added;           // nonzero products added to finite sums
  int64_t swamped_chunks;  // the same of the sums of chunks
  int64_t added_chunks;
  // Sums that met an overflow: a product or a sum, rounded without bound, that exceeds max.
  int64_t overflowed;
};

// c (m, n), written; a (m, k) and b (k, n) with strides in elements, finite values. row_id: m keys
// of the rows' draws; the keys of the columns are 0, 1, ...
struct EventArgs {
  const float* a;
  const float* b;
  float* c;
  int64_t m, n, k;
  int64_t a_row, a_k, b_k, b_col;
  const int64_t* row_id;
  const int64_t* accumulator;
  uint64_t seed;
};

EventCounts matmul_events(const EventArgs& args, int threads);

// A mask of the lanes of one panel, a bit each.
using LaneBits = uint16_t;

// Rows of a block, and products that are loaded at once, at most.
constexpr int kEventRows = 8;
constexpr int64_t kEventDepth = 512;

// Some rows and the lanes of one panel.
struct EventBlock {
  const EventArgs* args;
  int64_t row, rows;
  int64_t lane, lanes;
};

}  // namespace lpk
