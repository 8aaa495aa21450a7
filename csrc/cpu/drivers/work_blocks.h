// How the outputs of products are cut into work blocks, and which of these a thread takes together.
#pragma once

#include <cstdint>
#include <vector>

#include "gemm.h"

namespace lpk {

// A block of B (kMaxDepth x kLanes floats, 288 KB) stays in the second cache while the blocks of A
// (kMaxRows x kMaxDepth, 108 KB) of kUnitRows rows pass by; their sums (384 KB) wait there too.
// Every element of A that is packed is read by kLanes products: the more lanes, the less packing.
constexpr int64_t kLanes = 256;
// Every kernel takes this many rows in whole groups.
constexpr int64_t kRowGroup = 12;

constexpr int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

struct WorkBlock {
  const Product* product;
  Interval rows, lanes;
  double place;  // among the blocks of its product, as a share of them
};

// Blocks first .. end - 1 of the list, for one thread.
struct Turn {
  int64_t first, end;
};

// Cuts products into blocks of about equal size, which are as large as the scratch holds, and
// smaller where the threads would otherwise run out of them.
void cut(const std::vector<Product>& products, int threads, std::vector<WorkBlock>* blocks,
         std::vector<Turn>* turns);

// In scaled.cpp: run_block of gemm.cpp for an accumulator with chunk="scale".
void run_scaled_block(const WorkBlock& block, const Kernels& kernel, const Arithmetic& arithmetic,
                      uint64_t seed, uint64_t call);

}  // namespace lpk
