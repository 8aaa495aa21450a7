// Blocks aligned by their operands in groups of lanes, for an instruction set with vectors.
#pragma once

#include "operand_lanes.h"

namespace lpk {
namespace {

// Lanes from `lane` on, kVectors vectors of them; where a sum is too large for the certificate the
// exact sums of `exact`. Returns how many.
template <class T, int kVectors, bool kPlain, class End, class Exact>
int64_t run_operand_group(const OperandGroup<T>& group, const End& end, int64_t lane,
                          const Exact& exact) {
  using Kernel = OperandKernel<T, kVectors, kPlain>;
  const Tile& t = group.t;
  thread_local typename Kernel::Columns columns;
  columns.pack(t, group.blocks, lane, group.proof.b_lowest, group.b_emin);
  const SavedLanes before(t, lane, Kernel::kLanes);
  if (Kernel(group, columns).run(end, lane)) {
    count_products(Tier::kCertified, t.rows * Kernel::kLanes * t.depth);
  } else {
    before.restore();
    exact(lane, lane + Kernel::kLanes);
  }
  return Kernel::kLanes;
}

// Each group takes the most vectors of lanes that are left.
template <class T, bool kPlain, class End, class Exact>
void run_operand_groups(const OperandGroup<T>& group, const End& end, const Exact& exact) {
  constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
  const int64_t lanes = group.t.lanes;
  for (int64_t lane = 0; lane < lanes;) {
    const int64_t left = (lanes - lane) / kWidth;
    if (left >= kMostVectors<T>) {
      lane += run_operand_group<T, kMostVectors<T>, kPlain>(group, end, lane, exact);
    } else if constexpr (2 * kWidth >= kPanel) {
      if (left >= 2) {
        lane += run_operand_group<T, 2, kPlain>(group, end, lane, exact);
      } else if constexpr (kWidth == kPanel) {
        // One vector is a panel.
        lane += run_operand_group<T, 1, kPlain>(group, end, lane, exact);
      }
    }
  }
}

// In float32 or double, as T says; false, and nothing done, without a certificate.
template <class T, class End, class Exact>
bool run_operand_lanes(const Tile& t, const Accumulator& acc, const OperandBlocks& blocks,
                       const OperandRange& state, const End& end, const Exact& exact) {
  const OperandRange a = range_of_a(t);
  const OperandRange& b = range_of_b(t);
  const Precision& precision = OperandVector<T>::kPrecision;
  const OperandCertificate proof = certify_operands(precision, t, acc, a, b, state);
  if (!proof.valid) return false;
  const int left = std::ilogb(acc.left_min_normal), right = std::ilogb(acc.right_min_normal);
  thread_local OperandRows<T> rows;
  rows.pack(t, blocks, proof.a_lowest, t.exchanged ? right : left);
  const OperandGroup<T> group{t, acc, blocks, proof, rows, t.exchanged ? left : right};
  proof.plain ? run_operand_groups<T, true>(group, end, exact)
              : run_operand_groups<T, false>(group, end, exact);
  return true;
}

// In vectors of the processor; false, and nothing done, without a certificate.
template <class Exact>
bool run_operand_vectors(const Tile& t, const Accumulator& acc, const OperandBlocks& blocks,
                         const Exact& exact) {
  if (t.spread() || acc.has_core()) return false;
  const ChunkEnd end(acc);
  const OperandRange state = state_range<false>(t, acc);
  return run_operand_lanes<float>(t, acc, blocks, state, end, exact) ||
         run_operand_lanes<double>(t, acc, blocks, state, end, exact);
}

}  // namespace
}  // namespace lpk
