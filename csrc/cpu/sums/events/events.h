// A diagnosis of the sums inside a matrix product. It counts, step by step, the additions that
// change nothing and the values beyond the range, and makes gradients without the products lost
// that way. It is exact in every format and mode, for sums in sequence and in chunks, and slower
// than gemm.h.
#pragma once

#include <cstdint>

#include "cpu/drivers/tile.h"

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

// a (m, k) and b (k, n) with strides in elements, finite values. row_id: m keys of the rows' draws;
// those of the columns are first_col + 0, 1, ...
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
  int64_t first_col;
  const int64_t* accumulator;
  uint64_t seed;
};

EventCounts matmul_events(const EventArgs& args, int threads);

// left (m, k) = sum over n of g b, right (k, n) = sum over m of g a, where g is (m, n) and all
// three are row-major. Products are left out if their addition, or their chunk's, has an event of
// `bits`. recursive: an overflow takes the products before it in its sum with it. Sums in float32,
// in an order of their own.
struct MaskArgs {
  EventArgs events;  // its outputs are null
  const float* g;
  float* left;
  float* right;
  uint8_t bits;
  bool recursive;
};

void masked_gradients(const MaskArgs& args, int threads);

// A mask of the lanes of one panel, a bit each.
using LaneBits = uint16_t;

// Rows of a block and products of a piece at most.
constexpr int kEventRows = 8;
constexpr int64_t kEventDepth = 512;

// Marks of the products from .. to of a block's rows, kEventDepth apart: nonzero products added to
// a finite sum; the lost ones among these; values beyond the range. The same marks of the chunks
// that end among these products, from `first_chunk` on.
struct EventPiece {
  int64_t row, rows;
  int64_t lane;
  LaneBits lanes;  // the lanes that are columns
  int64_t from, to;
  int64_t first_chunk, chunk_count;
  LaneBits added[kEventRows * kEventDepth];
  LaneBits lost[kEventRows * kEventDepth];
  LaneBits over[kEventRows * kEventDepth];
  LaneBits added_chunks[kEventRows * kEventDepth];
  LaneBits lost_chunks[kEventRows * kEventDepth];
  LaneBits over_chunks[kEventRows * kEventDepth];
};

// Receives the pieces of one block, in the order of k.
class EventSink {
 public:
  virtual void take(const EventPiece& piece) = 0;

 protected:
  ~EventSink() = default;
};

// Some rows and the lanes of one panel.
struct EventBlock {
  const EventArgs* args;
  int64_t row, rows;
  int64_t lane, lanes;
  EventSink* sink;
};

// Sums over one row's panels, or one panel's rows, of the products kept: kMaskTile of k at a time.
struct MaskedRow {
  const float* g;        // panels of the row
  const float* b;        // panels x k panels
  const LaneBits* pass;  // panels x k
  int64_t panels, k;
  float* left;  // k
};
struct MaskedPanel {
  const float* g;        // the panel of row 0; the next row's is g_row on
  const float* a;        // rows a_row apart
  const LaneBits* pass;  // of row 0; the next row's are pass_row on
  int64_t g_row, a_row, pass_row;
  int64_t rows, k;
  float* right;  // k panels: added to
};

struct EventKernels {
  void (*count)(const EventBlock&);
  void (*masked_row)(const MaskedRow&);
  void (*masked_panel)(const MaskedPanel&);
};
extern const EventKernels kScalarEvents;
extern const EventKernels kAvx2Events;
extern const EventKernels kAvx512Events;
extern const EventKernels kNeonEvents;

}  // namespace lpk
