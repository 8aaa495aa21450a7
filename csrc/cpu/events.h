// What happens inside the sums of a matrix product, step by step: additions that change nothing,
// values beyond the range. A diagnosis: exact in every format and mode, and slower than gemm.h.
#pragma once

#include <cstdint>

namespace lpk {

// Bits of one addition.
constexpr uint8_t kSwamped = 1;     // a nonzero addend left the sum as it was
constexpr uint8_t kOverflowed = 2;  // the product or the sum, rounded without bound, exceeds max

struct EventCounts {
  int64_t swamped;         // of products
  int64_t added;           // nonzero products added to finite sums
  int64_t swamped_chunks;  // the same of the sums of chunks
  int64_t added_chunks;
  int64_t overflowed;  // sums that met an overflow
};

// a (m, k) and b (k, n) with strides in elements, finite values. row_id: m keys of the rows' draws.
// Written where not null: c (m, n); products (m, k, n) and chunks (m, ceil(k / chunk), n), the bits
// of each addition.
struct EventArgs {
  const float* a;
  const float* b;
  float* c;
  uint8_t* products;
  uint8_t* chunks;
  int64_t m, n, k;
  int64_t a_row, a_k, b_k, b_col;
  const int64_t* row_id;
  const int64_t* accumulator;
  uint64_t seed;
};

EventCounts matmul_events(const EventArgs& args, int threads);

// Some rows and lanes of it, for the instruction set that the file is compiled for.
struct EventBlock {
  const EventArgs* args;
  int64_t row, rows;
  int64_t lane, lanes;
};
using EventKernel = EventCounts (*)(const EventBlock&);
EventCounts events_scalar(const EventBlock& block);
EventCounts events_avx2(const EventBlock& block);
EventCounts events_avx512(const EventBlock& block);

// Rows and lanes of a block at most.
constexpr int64_t kEventRows = 8;
constexpr int64_t kEventLanes = 8;

}  // namespace lpk
