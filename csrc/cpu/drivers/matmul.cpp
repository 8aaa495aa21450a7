// C = A B, over a batch.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "gemm.h"

namespace lpk {
namespace {

// The operands of one matrix product; transposed if the lanes are the rows of C.
class MatmulOperands : public Operands {
 public:
  MatmulOperands(const MatmulArgs& args, int64_t entry, bool transposed)
      : args_(args), entry_(entry), transposed_(transposed) {
    const float* a = args.a + args.a_offset[entry];
    const float* b = args.b + args.b_offset[entry];
    left_ = transposed ? b : a;
    right_ = transposed ? a : b;
    row_stride_ = transposed ? args.b_col : args.a_row;
    left_k_ = transposed ? args.b_k : args.a_k;
    lane_stride_ = transposed ? args.a_row : args.b_col;
    right_k_ = transposed ? args.a_k : args.b_k;
  }

  void pack_a(int64_t row, int64_t rows, int64_t k, int64_t depth, const Rounder& round,
              float* a) const override {
    const float* from = left_ + row * row_stride_ + k * left_k_;
    if (row_stride_ == 1 && left_k_ != 1) {
      kernels_.transpose(from, left_k_, depth, rows, a, depth);
      return round(a, rows * depth);
    }
    float* to = a;
    for (int64_t r = 0; r < rows; ++r, from += row_stride_, to += depth) {
      if (left_k_ == 1) {
        std::memcpy(to, from, depth * sizeof(float));
      } else {
        for (int64_t i = 0; i < depth; ++i) to[i] = from[i * left_k_];
      }
    }
    round(a, rows * depth);
  }

  void pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes, const Rounder& round,
              float* b) const override {
    const float* from = right_ + k * right_k_ + lane * lane_stride_;
    pack_panels(kernels_, from, right_k_, lane_stride_, depth, lanes, b);
    round(b, packed_floats(depth, lanes));
  }

  // The scales of the rows and the lanes of the product.
  ProductScales scales(const MatmulScales& of) const {
    const int64_t k = args_.k;
    const auto side = [k](const float* scale, int64_t offset, int64_t size, const float* codes,
                          int64_t row, int64_t codes_k) {
      const int64_t count = size > 0 && k > 0 ? (k + size - 1) / size : 1;
      return ScaledSide{scale + offset, count, size, codes, row, codes_k};
    };
    ProductScales found{side(of.left, of.left_offset[entry_], of.left_size,
                             transposed_ ? right_ : left_, args_.a_row, args_.a_k),
                        side(of.right, of.right_offset[entry_], of.right_size,
                             transposed_ ? left_ : right_, args_.b_col, args_.b_k),
                        of.order};
    if (!transposed_) return found;
    std::swap(found.rows, found.lanes);
    if (of.order == ScaleOrder::kLeft) found.order = ScaleOrder::kRight;
    if (of.order == ScaleOrder::kRight) found.order = ScaleOrder::kLeft;
    return found;
  }

  void row_ids(int64_t row, int64_t rows, uint64_t* ids) const override {
    std::iota(ids, ids + rows, (transposed_ ? 0 : entry_ * args_.m) + row);
  }
  void lane_ids(int64_t lane, int64_t lanes, uint64_t* ids) const override {
    std::iota(ids, ids + lanes, (transposed_ ? entry_ * args_.m : 0) + lane);
  }

  void store(int64_t row, int64_t rows, int64_t lane, int64_t lanes, const float* values,
             int64_t stride) const override {
    float* c = args_.c + entry_ * args_.m * args_.n;
    if (transposed_)
      return kernels_.transpose(values, stride, rows, lanes, c + lane * args_.n + row, args_.n);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(c + (row + r) * args_.n + lane, values + r * stride, lanes * sizeof(float));
  }

 private:
  const MatmulArgs& args_;
  int64_t entry_;
  bool transposed_;
  const float* left_;
  const float* right_;
  int64_t row_stride_, left_k_, lane_stride_, right_k_;
};

}  // namespace

void matmul(const MatmulArgs& args, const Arithmetic& arithmetic, uint64_t seed, int threads,
            const MatmulScales* scales) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  // Lanes along n, unless n leaves most of a panel empty and m does not.
  const bool transposed = args.n < kPanel / 2 && args.m > args.n;
  thread_local std::vector<MatmulOperands> operands;
  thread_local std::vector<Product> products;
  thread_local std::vector<ProductScales> scales_of;
  operands.clear();
  operands.reserve(args.batch);
  scales_of.clear();
  scales_of.reserve(args.batch);
  products.clear();
  for (int64_t entry = 0; entry < args.batch; ++entry) {
    operands.emplace_back(args, entry, transposed);
    products.push_back({transposed ? args.n : args.m, transposed ? args.m : args.n, args.k,
                        even_depth(args.k, kWholeChunks), transposed,
                        transposed ? args.bias : nullptr, transposed ? nullptr : args.bias,
                        &operands.back()});
    Product& p = products.back();
    p.exchanged = transposed;
    if (scales != nullptr) {
      scales_of.push_back(operands.back().scales(*scales));
      p.scales = &scales_of.back();
    }
    if (args.initial == nullptr) continue;
    p.initial = args.initial + entry * args.m * args.n;
    p.initial_row = transposed ? 1 : args.n;
    p.initial_lane = transposed ? args.n : 1;
  }
  accumulate_products(products, arithmetic, seed, threads);
}

}  // namespace lpk
