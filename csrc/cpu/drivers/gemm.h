// Emulated sums of products: the driver that every product and convolution shares.
#pragma once

#include <cstdint>
#include <vector>

#include "tile.h"

namespace lpk {

// Rounds operands where they are packed: by the integers of a quantizer (Arithmetic), or not at
// all.
class Rounder {
 public:
  Rounder(const Kernels& kernels, const int64_t* quantizer)
      : kernels_(kernels), quantizer_(quantizer) {}
  void operator()(float* x, int64_t count) const;

 private:
  const Kernels& kernels_;
  const int64_t* quantizer_;
};

// Consecutive rows, lanes or positions of k.
struct Interval {
  int64_t first, count;
};

// The driver asks the operands for blocks of A (rows x k) and of B (k x lanes), and for a place for
// the results.
//
// Lanes are the side that kernels vectorise over.
class Operands {
 public:
  virtual ~Operands() = default;
  // Writes a[r][k], rounded; fewer than kPanel floats may be written behind it.
  virtual void pack_a(Interval rows, Interval k, const Rounder& round, float* a) const = 0;
  // Called in place of pack_a where the product is spread, for A of the tile.
  virtual void spread_a(Interval, Interval, const Rounder&, TileOperands*) const {}
  // Writes panels of kPanel lanes, [panel][k][lane], rounded; lanes past the end are zero.
  virtual void pack_b(Interval k, Interval lanes, const Rounder& round, float* b) const = 0;
  // The range of what pack_a and pack_b packed last on this thread, if they measured it.
  virtual bool a_range(OperandRange*) const { return false; }
  virtual bool b_range(OperandRange*) const { return false; }
  // Mark absent taps of a block (Tile), if there are any, and return whether there are. The
  // contents of `absent` are arbitrary before.
  virtual bool mark_rows(Interval, Interval, uint8_t*) const { return false; }
  virtual bool mark_lanes(Interval, Interval, uint16_t*) const { return false; }
  // Ids of rows and of lanes in the key of a draw.
  virtual void row_ids(Interval rows, uint64_t* ids) const = 0;
  virtual void lane_ids(Interval lanes, uint64_t* ids) const = 0;
  // Takes the results of rows x lanes, rows `stride` apart.
  virtual void store(Interval rows, Interval lanes, const float* values, int64_t stride) const = 0;

 protected:
  const Kernels& kernels_ = kernels();
};

// The most positions of k in one block (no fewer than kMaxBlock), and of rows.
constexpr int64_t kMaxDepth = 288;  // 32 channels of 3 x 3 taps
constexpr int64_t kMaxRows = 96;
// The most rows of a work block. A spread product that is one panel wide may have more, because its
// windows overlap less.
constexpr int64_t kUnitRows = 4 * kMaxRows;
constexpr int64_t kSpreadRows = 1020;
// The most positions of k where the product is spread.
constexpr int64_t kMaxSpreadDepth = 1024;
// The most rows times positions of k of a tile of such a product.
constexpr int64_t kMaxSpread = kMaxRows * kMaxSpreadDepth;

// Codes of one side of a product, and their scales along k, of `size` products each.
struct ScaledSide {
  const float* scale;
  int64_t stride;  // between the scales of rows, or of lanes
  int64_t size;    // 0: one scale for all of k
  const float* codes;
  int64_t codes_row, codes_k;  // strides

  float at(int64_t row, int64_t segment) const { return scale[row * stride + segment]; }
  int64_t segment(int64_t k) const { return size > 0 ? k / size : 0; }
};
// The sides of the rows and of the lanes of a product whose accumulator has chunk="scale".
struct ProductScales {
  ScaledSide rows, lanes;
  ScaleOrder order;
};

struct Product {
  int64_t rows;
  int64_t lanes;
  int64_t length;         // products in each sum, but for positions left out
  int64_t depth;          // of a block of k, what the operands pack well
  bool lanes_are_rows;    // in the key of a draw
  const float* row_bias;  // one value for each row or each lane, or null
  const float* lane_bias;
  const Operands* operands;
  // The position of every product in the whole sum, ascending, and then the whole sum's length.
  // Null: no position is left out, and `length` is the whole sum's.
  const int64_t* position = nullptr;
  bool exchanged = false;  // A packs the right operand of Arithmetic, B the left
  // Products of one family write to the same places in memory: their blocks take turns.
  int64_t family = -1;
  // There is one panel, and every lane has an A of its own.
  bool spread = false;
  // The starting values of the outermost sums, before they are rounded to the sums' format: one for
  // each row and lane, by these strides; null: +0.
  const float* initial = nullptr;
  int64_t initial_row = 0, initial_lane = 0;
  // Of codes: their scales, which enter the outer sum. Null: none.
  const ProductScales* scales = nullptr;
};

// Blocks of k made of whole units of this length end where chunks of the usual lengths end.
constexpr int64_t kWholeChunks = 64;

// As few blocks of k as there can be, of about equal depth: whole `units`, if one fits a block.
constexpr int64_t even_depth(int64_t length, int64_t unit = 1) {
  const int64_t most = kMaxDepth / unit;
  if (most == 0 || length == 0) return kMaxDepth;
  const int64_t units = (length + unit - 1) / unit;
  const int64_t blocks = (units + most - 1) / most;
  return (units + blocks - 1) / blocks * unit;
}

// Packs the block of B whose element (k, lane) lies at from[k * k_stride + lane * lane_stride].
void pack_panels(const Kernels& kernels, const float* from, int64_t k_stride, int64_t lane_stride,
                 int64_t depth, int64_t lanes, float* b);

constexpr int64_t packed_floats(int64_t depth, int64_t lanes) {
  return (lanes + kPanel - 1) / kPanel * kPanel * depth;
}

// The accumulator, as the integers of accumulate.h, and the quantizers of whole tensors: of the
// operands as they are packed, of the result before it is stored. A quantizer is of a float or
// fixed format and draws nothing (the integers of its format, then its rounding), or it is null.
// Zeros stay zeros under every quantizer, so padding and absent taps stay zeros too.
struct Arithmetic {
  const int64_t* accumulator;
  const int64_t* left = nullptr;  // what pack_a packs, unless the product exchanges its sides
  const int64_t* right = nullptr;
  const int64_t* result = nullptr;
};

// Computes every product of the list, over `threads` threads.
void accumulate_products(const std::vector<Product>& products, const Arithmetic& arithmetic,
                         uint64_t seed, int threads);

// A, by rows and k, or B, by columns and k. Offsets and strides count elements.
struct MatmulSide {
  const float* data;
  const int64_t* offset;     // of each batch entry
  int64_t stride, k_stride;  // between rows or columns, and between products
};

// C[b] = A[b] B[b] (+ bias over columns), C contiguous (batch, m, n).
struct MatmulArgs {
  MatmulSide a, b;
  const float* bias;  // n values or null
  float* c;
  int64_t batch, m, n, k;
  // Contiguous as c: where the outermost sums start, rounded to their format; null: +0.
  const float* initial = nullptr;
};

// The scales of the codes of a side, one row or column after the other.
struct MatmulSideScales {
  const float* data;
  const int64_t* offset;  // of each batch entry
  int64_t size;           // products that share a scale; 0: all
};
struct MatmulScales {
  MatmulSideScales left, right;
  ScaleOrder order;
};

// scales: of an accumulator with chunk="scale"; else null.
void matmul(const MatmulArgs& args, const Arithmetic& arithmetic, uint64_t seed, int threads,
            const MatmulScales* scales = nullptr);

// The key of the draw of element (0, 0).
struct DrawKey {
  uint64_t seed;
  uint32_t site;
  uint64_t row, col, k;
};

// total[r][c] <- round(total[r][c] + addend[r * addend_row + c]) in the accumulator's outer format.
void accumulate_elements(float* total, const float* addend, int64_t addend_row, int64_t rows,
                         int64_t cols, const int64_t* accumulator, const DrawKey& first,
                         int threads);

}  // namespace lpk
