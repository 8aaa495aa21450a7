// C = A B, over a batch.
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
      : args_(args),
        entry_(entry),
        transposed_(transposed),
        of_rows_(transposed ? args.b : args.a),
        of_lanes_(transposed ? args.a : args.b) {}

  void pack_a(Interval rows, Interval k, const Rounder& round, float* a) const override {
    const MatmulSide& of = of_rows_;
    const float* from =
        of.data + of.offset[entry_] + rows.first * of.stride + k.first * of.k_stride;
    if (of.stride == 1 && of.k_stride != 1) {
      kernels_.transpose(from, of.k_stride, k.count, rows.count, a, k.count);
      return round(a, rows.count * k.count);
    }
    float* to = a;
    for (int64_t r = 0; r < rows.count; ++r, from += of.stride, to += k.count) {
      if (of.k_stride == 1) {
        std::memcpy(to, from, k.count * sizeof(float));
      } else {
        for (int64_t i = 0; i < k.count; ++i) to[i] = from[i * of.k_stride];
      }
    }
    round(a, rows.count * k.count);
  }

  void pack_b(Interval k, Interval lanes, const Rounder& round, float* b) const override {
    const MatmulSide& of = of_lanes_;
    const float* from =
        of.data + of.offset[entry_] + k.first * of.k_stride + lanes.first * of.stride;
    pack_panels(kernels_, from, of.k_stride, of.stride, k.count, lanes.count, b);
    round(b, packed_floats(k.count, lanes.count));
  }

  // The scales of the rows and the lanes of the product.
  ProductScales scales(const MatmulScales& of) const {
    const int64_t k = args_.k;
    const auto side = [&](const MatmulSide& codes, const MatmulSideScales& from) {
      const int64_t count = from.size > 0 && k > 0 ? (k + from.size - 1) / from.size : 1;
      return ScaledSide{from.data + from.offset[entry_],   count,        from.size,
                        codes.data + codes.offset[entry_], codes.stride, codes.k_stride};
    };
    ProductScales scales{side(args_.a, of.left), side(args_.b, of.right), of.order};
    if (!transposed_) return scales;
    std::swap(scales.rows, scales.lanes);
    if (of.order == ScaleOrder::kLeft) scales.order = ScaleOrder::kRight;
    if (of.order == ScaleOrder::kRight) scales.order = ScaleOrder::kLeft;
    return scales;
  }

  void row_ids(Interval rows, uint64_t* ids) const override {
    std::iota(ids, ids + rows.count, (transposed_ ? 0 : entry_ * args_.m) + rows.first);
  }
  void lane_ids(Interval lanes, uint64_t* ids) const override {
    std::iota(ids, ids + lanes.count, (transposed_ ? entry_ * args_.m : 0) + lanes.first);
  }

  void store(Interval rows, Interval lanes, const float* values, int64_t stride) const override {
    float* c = args_.c + entry_ * args_.m * args_.n;
    if (transposed_)
      return kernels_.transpose(values, stride, rows.count, lanes.count,
                                c + lanes.first * args_.n + rows.first, args_.n);
    for (int64_t r = 0; r < rows.count; ++r)
      std::memcpy(c + (rows.first + r) * args_.n + lanes.first, values + r * stride,
                  lanes.count * sizeof(float));
  }

 private:
  const MatmulArgs& args_;
  int64_t entry_;
  bool transposed_;
  const MatmulSide &of_rows_, &of_lanes_;
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
