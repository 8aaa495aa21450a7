// Blocks of outputs are the unit of work: each keeps its running sums while all of K passes by in
// packed blocks.
//
//   for each block of rows x lanes (over threads)
//     for each block of k: pack A and B, run the kernel
//     add the bias, store float32
#include "gemm.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "../common/accumulate.h"
#include "parallel.h"
#include "tile.h"

namespace lpk {
namespace {

// A block of B (kDepth x kLanes floats, 128 KB) stays in the second cache, one of A (kRows x
// kDepth, 64 KB) passes through.
constexpr int64_t kDepth = 256;
constexpr int64_t kLanes = 128;
constexpr int64_t kRows = 96;

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

struct Scratch {
  std::unique_ptr<float[]> a{new float[kRows * kDepth]};
  std::unique_ptr<uint8_t[]> absent{new uint8_t[kRows * kDepth]};
  std::unique_ptr<float[]> b{new float[kDepth * kLanes]};
  std::unique_ptr<float[]> inner{new float[kRows * kLanes]};
  std::unique_ptr<float[]> outer{new float[kRows * kLanes]};
  uint64_t row_id[kRows];
  uint64_t lane_id[kLanes];
};

struct Block {
  const Product* product;
  int64_t row, rows;
  int64_t lane, lanes;
};

// Rows per block: as many as the scratch holds, fewer where the threads would otherwise run out of
// blocks.
std::vector<Block> cut(const std::vector<Product>& products, int threads) {
  std::vector<Block> blocks;
  for (const Product& p : products) {
    const int64_t lane_blocks = (p.lanes + kLanes - 1) / kLanes;
    const int64_t others =
        static_cast<int64_t>(products.size()) * std::max<int64_t>(lane_blocks, 1);
    const int64_t wanted = std::max<int64_t>(1, (4 * threads + others - 1) / others);
    const int64_t step =
        std::clamp<int64_t>(round_up((p.rows + wanted - 1) / wanted, 12), 12, kRows);
    for (int64_t lane = 0; lane < p.lanes; lane += kLanes) {
      for (int64_t row = 0; row < p.rows; row += step) {
        blocks.push_back(
            {&p, row, std::min(step, p.rows - row), lane, std::min(kLanes, p.lanes - lane)});
      }
    }
  }
  return blocks;
}

void store_block(const Block& block, const Tile& tile, const Accumulator& acc, uint64_t seed) {
  const Product& p = *block.product;
  const Format& last = acc.chunk > 0 ? acc.outer : acc.fmt;
  const float* state = acc.chunk > 0 ? tile.outer : tile.inner;
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t l = 0; l < block.lanes; ++l) {
      double sum = state[r * tile.lanes + l];
      if (p.has_bias) {
        double threshold = 0;
        if (acc.rounding == Rounding::kStochastic) {
          const uint64_t row = p.lanes_are_rows ? tile.lane_id[l] : tile.row_id[r];
          const uint64_t col = p.lanes_are_rows ? tile.row_id[r] : tile.lane_id[l];
          const uint32_t draw = random_draw(acc.rng, seed, kSiteBias, row, col, 0, acc.random_bits);
          threshold = stochastic_threshold<double>(draw, acc.random_bits);
        }
        const double bias = p.operands->bias(block.row + r, block.lane + l);
        sum = add_rounded<double>(sum, bias, last, acc.rounding, threshold);
      }
      *p.operands->output(block.row + r, block.lane + l) = canonical_float(sum);
    }
  }
}

void run_block(const Block& block, const Kernels& kernel, const int64_t* accumulator,
               uint64_t seed) {
  thread_local Scratch scratch;
  const Product& p = *block.product;
  const Accumulator acc = accumulator_from(accumulator);
  Tile tile{};
  tile.rows = block.rows;
  tile.lanes = round_up(block.lanes, kPanel);
  tile.a = scratch.a.get();
  tile.b = scratch.b.get();
  tile.inner = scratch.inner.get();
  tile.outer = scratch.outer.get();
  tile.stride = tile.lanes;
  tile.accumulator = accumulator;
  tile.length = p.length;
  tile.seed = seed;
  tile.row_id = scratch.row_id;
  tile.lane_id = scratch.lane_id;
  tile.lanes_are_rows = p.lanes_are_rows;
  std::fill_n(tile.inner, block.rows * tile.lanes, 0.0f);
  std::fill_n(tile.outer, block.rows * tile.lanes, 0.0f);
  for (int64_t r = 0; r < block.rows; ++r) scratch.row_id[r] = p.operands->row_id(block.row + r);
  for (int64_t l = 0; l < tile.lanes; ++l) {
    scratch.lane_id[l] = l < block.lanes ? p.operands->lane_id(block.lane + l) : 0;
  }

  for (int64_t k = 0; k < p.length; k += kDepth) {
    tile.k0 = k;
    tile.depth = std::min(kDepth, p.length - k);
    const bool any_absent = p.operands->pack_a(block.row, block.rows, k, tile.depth,
                                               scratch.a.get(), scratch.absent.get());
    tile.absent = any_absent ? scratch.absent.get() : nullptr;
    p.operands->pack_b(k, tile.depth, block.lane, block.lanes, scratch.b.get());
    kernel.accumulate(tile);
  }
  store_block(block, tile, acc, seed);
}

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

  bool pack_a(int64_t row, int64_t rows, int64_t k, int64_t depth, float* a,
              uint8_t*) const override {
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = left_ + (row + r) * row_stride_ + k * left_k_;
      for (int64_t i = 0; i < depth; ++i) a[r * depth + i] = from[i * left_k_];
    }
    return false;
  }

  void pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes, float* b) const override {
    for (int64_t l0 = 0; l0 < lanes; l0 += kPanel, b += depth * kPanel) {
      const int64_t width = std::min<int64_t>(kPanel, lanes - l0);
      const float* from = right_ + k * right_k_ + (lane + l0) * lane_stride_;
      for (int64_t i = 0; i < depth; ++i) {
        float* to = b + i * kPanel;
        for (int64_t l = 0; l < width; ++l) to[l] = from[i * right_k_ + l * lane_stride_];
        std::fill(to + width, to + kPanel, 0.0f);
      }
    }
  }

  uint64_t row_id(int64_t row) const override { return transposed_ ? row : entry_ * args_.m + row; }
  uint64_t lane_id(int64_t lane) const override {
    return transposed_ ? entry_ * args_.m + lane : lane;
  }

  float* output(int64_t row, int64_t lane) const override {
    const int64_t m = transposed_ ? lane : row;
    const int64_t n = transposed_ ? row : lane;
    return args_.c + (entry_ * args_.m + m) * args_.n + n;
  }
  float bias(int64_t row, int64_t lane) const override {
    return args_.bias[transposed_ ? row : lane];
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

void accumulate_products(const std::vector<Product>& products, const int64_t* accumulator,
                         uint64_t seed, int threads) {
  const Kernels& kernel = kernels();
  const std::vector<Block> blocks = cut(products, threads);
  parallel_for(static_cast<int64_t>(blocks.size()), threads,
               [&](int64_t i) { run_block(blocks[i], kernel, accumulator, seed); });
}

void matmul(const MatmulArgs& args, const int64_t* accumulator, uint64_t seed, int threads) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  // Lanes along n, unless n leaves most of a panel empty and m does not.
  const bool transposed = args.n < kPanel / 2 && args.m > args.n;
  std::vector<MatmulOperands> operands;
  operands.reserve(args.batch);
  std::vector<Product> products;
  products.reserve(args.batch);
  for (int64_t entry = 0; entry < args.batch; ++entry) {
    operands.emplace_back(args, entry, transposed);
    products.push_back({transposed ? args.n : args.m, transposed ? args.m : args.n, args.k,
                        transposed, args.bias != nullptr, &operands.back()});
  }
  accumulate_products(products, accumulator, seed, threads);
}

void accumulate_elements(float* total, const float* addend, int64_t rows, int64_t cols,
                         const int64_t* accumulator, const DrawKey& first, int threads) {
  const Accumulator acc = accumulator_from(accumulator);
  parallel_for(rows, threads, [&](int64_t r) {
    for (int64_t c = 0; c < cols; ++c) {
      double threshold = 0;
      if (acc.rounding == Rounding::kStochastic) {
        const uint32_t draw = random_draw(acc.rng, first.seed, first.site, first.row + r,
                                          first.col + c, first.k, acc.random_bits);
        threshold = stochastic_threshold<double>(draw, acc.random_bits);
      }
      float& sum = total[r * cols + c];
      sum = canonical_float(
          add_rounded<double>(sum, addend[r * cols + c], acc.outer, acc.rounding, threshold));
    }
  });
}

}  // namespace lpk
