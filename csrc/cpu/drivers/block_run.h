// A work block on its way: its sums, and the blocks of k that are packed and added to them.
#pragma once

#include <algorithm>

#include "common/accumulate.h"
#include "work_blocks.h"

namespace lpk {

struct BlockScratch;

class BlockRun {
 public:
  // Every row and lane of the work block. Its sums are still to be set.
  Tile tile{};
  const Accumulator acc;

  // `call` is the number of the call that the work block belongs to.
  BlockRun(const WorkBlock& block, const Kernels& kernel, const Arithmetic& arithmetic,
           uint64_t seed, uint64_t call);

  // Takes the keys of draws into the tile.
  void take_ids();
  // Starts sums, laid out as the tile's, from the product's initial values, rounded.
  void start(float* sums, const int64_t* accumulator) const;
  // Makes the tile's inner sums +0.
  void clear_inner() const;
  // One more addition to such sums.
  AddBlock addition(float* sums, const int64_t* accumulator) const;
  // Adds the bias, applies the output quantizer and makes NaNs canonical.
  void store(float* sums, const int64_t* accumulator, const int64_t* quantizer) const;
  // The most products of a block of k.
  int64_t most() const { return std::max(product_.depth, acc.positions_together()); }
  // Packs the products k .. k + tile.depth and calls accumulate(rows of the tile).
  template <class Accumulate>
  void add(int64_t k, const Accumulate& accumulate) {
    pack_b(k);
    for_rows(k, [&](Tile rows, int64_t row) {
      pack_a(row, k, &rows);
      accumulate(rows);
    });
  }
  // Calls accumulate(rows of the tile, the first row), before A is packed.
  template <class Accumulate>
  void for_rows(int64_t k, const Accumulate& accumulate);
  // They pack the products k .. k + tile.depth.
  void pack_b(int64_t k);
  void pack_a(int64_t row, int64_t k, Tile* rows);
  // The kernel of the accumulator.
  auto kernel() const {
    return acc.has_running_sum() ? kernels_.accumulate : kernels_.accumulate_ordered;
  }

 private:
  void add_bias(float* sums, const int64_t* accumulator) const;

  const WorkBlock& block_;
  const Product& product_;
  const Kernels& kernels_;
  const Rounder round_a_, round_b_;
  const uint64_t call_;
  BlockScratch& scratch_;
};

// The marks of one block of k: of all its lanes, and of one group of its rows after the other.
class BlockMarks final : public Marks {
 public:
  BlockMarks(const WorkBlock& block, Interval k, BlockScratch* scratch)
      : block_(block), k_(k), scratch_(scratch) {}
  // of_rows: among those of the work block.
  void take(Interval of_rows) {
    rows_ = of_rows;
    rows = nullptr;
    rows_marked_ = false;
  }
  void mark() override;

 private:
  const WorkBlock& block_;
  Interval k_;
  BlockScratch* scratch_;
  Interval rows_{};
  bool rows_marked_ = false, lanes_marked_ = false;
};

template <class Accumulate>
void BlockRun::for_rows(int64_t k, const Accumulate& accumulate) {
  const int64_t groups = ceil_div(block_.rows.count, kRowGroup);
  // Short blocks take more rows at a time: runs to pack are longer, and calls fewer.
  const int64_t together = std::max<int64_t>(1, kMaxRows * kMaxDepth / tile.depth / kRowGroup);
  const int64_t parts = ceil_div(groups, together);
  BlockMarks marks(block_, {k, tile.depth}, &scratch_);
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t row = part * groups / parts * kRowGroup;
    const int64_t end = std::min(block_.rows.count, (part + 1) * groups / parts * kRowGroup);
    Tile rows = tile;
    rows.rows = end - row;
    rows.inner += row * tile.stride;
    rows.outer += row * tile.stride;
    rows.row_id += row;
    rows.planes += row * tile.stride;
    rows.node_lanes += row * tile.stride / kPanel;
    marks.take({row, rows.rows});
    rows.marks = &marks;
    accumulate(rows, row);
  }
}

}  // namespace lpk
