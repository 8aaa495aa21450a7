// Emulated sums of products: the driver that every product and convolution shares.
#pragma once

#include <cstdint>
#include <vector>

namespace lpk {

// What a driver asks of the operands: blocks of A (rows x k) and of B (k x lanes).
//
// Lanes are the side that kernels vectorise over; only A may have absent taps.
class Operands {
 public:
  virtual ~Operands() = default;
  // a[r][k] for rows row .. row + rows, positions k .. k + depth; marks absent taps and returns
  // whether there are any.
  virtual bool pack_a(int64_t row, int64_t rows, int64_t k, int64_t depth, float* a,
                      uint8_t* absent) const = 0;
  // Panels of kPanel lanes, [panel][k][lane]; lanes past the end are zero.
  virtual void pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes, float* b) const = 0;
  // Ids of a row and of a lane in the key of a draw.
  virtual uint64_t row_id(int64_t row) const = 0;
  virtual uint64_t lane_id(int64_t lane) const = 0;
  // Where an output is stored.
  virtual float* output(int64_t row, int64_t lane) const = 0;
  virtual float bias(int64_t row, int64_t lane) const = 0;
};

struct Product {
  int64_t rows;
  int64_t lanes;
  int64_t length;       // products in each sum
  bool lanes_are_rows;  // in the key of a draw
  bool has_bias;
  const Operands* operands;
};

// Computes every product of the list, over `threads` threads.
void accumulate_products(const std::vector<Product>& products, const int64_t* accumulator,
                         uint64_t seed, int threads);

// C[b] = A[b] B[b] (+ bias over columns), C contiguous (batch, m, n). Offsets and strides count
// elements.
struct MatmulArgs {
  const float* a;
  const float* b;
  const float* bias;  // n values or null
  float* c;
  int64_t batch, m, n, k;
  const int64_t* a_offset;  // of each batch entry
  const int64_t* b_offset;
  int64_t a_row, a_k, b_k, b_col;  // strides
};

void matmul(const MatmulArgs& args, const int64_t* accumulator, uint64_t seed, int threads);

// The key of the draw of element (0, 0).
struct DrawKey {
  uint64_t seed;
  uint32_t site;
  uint64_t row, col, k;
};

// total[r][c] <- round(total[r][c] + addend[r][c]) in the accumulator's outer format.
void accumulate_elements(float* total, const float* addend, int64_t rows, int64_t cols,
                         const int64_t* accumulator, const DrawKey& first, int threads);

}  // namespace lpk
