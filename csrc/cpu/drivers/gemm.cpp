// A work block is a block of outputs. It keeps its running sums while all of K passes by in packed
// blocks.
//
//   for each block of rows x lanes (over threads)
//     for each block of k: pack B; for some rows at a time, pack A and run the kernel
//     add the bias, store float32
#include "gemm.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>

#include "block_run.h"
#include "cpu/elementwise/quantize.h"
#include "parallel.h"

namespace lpk {
namespace {

// Where the block of k that begins at product k ends: after at most `depth` products, and not
// between positions that a kernel must see together.
int64_t block_end(const Product& p, const Accumulator& acc, int64_t k, int64_t depth) {
  int64_t end = std::min(k + depth, p.length);
  const int64_t together = acc.positions_together();
  if (together == 1 || end == p.length) return end;
  const int64_t sum = acc.chunk > 0 ? acc.chunk : std::numeric_limits<int64_t>::max();
  if (p.position == nullptr) return end - end % sum % together;
  const int64_t next = p.position[end];
  const int64_t first = next - next % sum % together;
  while (p.position[end - 1] >= first) --end;
  return end;
}

// Makes one work block. `call` is the number of the call that it belongs to.
void run_block(const WorkBlock& block, const Kernels& kernel, const Arithmetic& arithmetic,
               uint64_t seed, uint64_t call) {
  const Product& p = *block.product;
  if (p.scales != nullptr) return run_scaled_block(block, kernel, arithmetic, seed, call);
  BlockRun run(block, kernel, arithmetic, seed, call);
  Tile& tile = run.tile;
  run.clear_inner();
  std::fill_n(tile.outer, block.rows.count * tile.lanes, 0.0f);
  if (run.acc.draws()) run.take_ids();
  float* sums = run.acc.chunk > 0 ? tile.outer : tile.inner;
  tile.started = p.initial != nullptr;
  if (tile.started) run.start(sums, tile.accumulator);
  const auto accumulate = run.kernel();
  for (int64_t k = 0; k < p.length; k += tile.depth) {
    tile.k0 = k;
    tile.position = p.position == nullptr ? nullptr : p.position + k;
    tile.depth = block_end(p, run.acc, k, run.most()) - k;
    run.add(k, accumulate);
  }
  run.store(sums, tile.accumulator, arithmetic.result);
}

}  // namespace

void Rounder::operator()(float* x, int64_t count) const {
  round_in_place(kernels_, quantizer_, x, count);
}

void pack_panels(const Kernels& kernels, const float* from, int64_t k_stride, int64_t lane_stride,
                 int64_t depth, int64_t lanes, float* b) {
  for (int64_t l0 = 0; l0 < lanes;
       l0 += kPanel, b += depth * kPanel, from += kPanel * lane_stride) {
    const int64_t width = std::min<int64_t>(kPanel, lanes - l0);
    if (width < kPanel) std::fill_n(b, depth * kPanel, 0.0f);
    if (k_stride == 1 && lane_stride != 1) {
      kernels.transpose(from, lane_stride, width, depth, b, kPanel);
    } else if (lane_stride == 1 && width == kPanel) {
      for (int64_t i = 0; i < depth; ++i)
        std::memcpy(b + i * kPanel, from + i * k_stride, kPanel * sizeof(float));
    } else {
      for (int64_t i = 0; i < depth; ++i) {
        for (int64_t l = 0; l < width; ++l)
          b[i * kPanel + l] = from[i * k_stride + l * lane_stride];
      }
    }
  }
}

void accumulate_products(const std::vector<Product>& products, const Arithmetic& arithmetic,
                         uint64_t seed, int threads) {
  static std::atomic<uint64_t> calls{0};
  const uint64_t call = ++calls;
  const Kernels& kernel = kernels();
  thread_local std::vector<WorkBlock> scratch;
  std::vector<WorkBlock>& blocks = scratch;
  thread_local std::vector<Turn> scratch_turns;
  std::vector<Turn>& turns = scratch_turns;
  cut(products, threads, &blocks, &turns);
  if (blocks.size() == 1) {
    const FloatEnvironment environment;
    return run_block(blocks[0], kernel, arithmetic, seed, call);
  }
  parallel_for(static_cast<int64_t>(turns.size()), threads, [&](int64_t turn) {
    for (int64_t i = turns[turn].first; i < turns[turn].end; ++i)
      run_block(blocks[i], kernel, arithmetic, seed, call);
  });
}

void accumulate_elements(float* total, const float* addend, int64_t addend_row, int64_t rows,
                         int64_t cols, const int64_t* accumulator, const DrawKey& first,
                         int threads) {
  constexpr int64_t kRows = 16, kCols = 1024;
  const Kernels& kernel = kernels();
  parallel_ranges(rows, kRows, threads, [&](int64_t row, int64_t end) {
    uint64_t row_id[kRows], lane_id[kCols];
    std::iota(row_id, row_id + (end - row), first.row + static_cast<uint64_t>(row));
    AddBlock job{};
    job.stride = cols;
    job.addend_row = addend_row;
    job.rows = end - row;
    job.addend_lane = 1;
    job.accumulator = accumulator;
    job.seed = first.seed;
    job.site = first.site;
    job.k = first.k;
    job.row_id = row_id;
    job.lane_id = lane_id;
    for (int64_t col = 0; col < cols; col += kCols) {
      std::iota(lane_id, lane_id + kCols, first.col + static_cast<uint64_t>(col));
      job.sum = total + row * cols + col;
      job.addend = addend + row * addend_row + col;
      job.lanes = std::min(kCols, cols - col);
      kernel.add(job);
    }
  });
}

}  // namespace lpk
