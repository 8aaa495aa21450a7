// Blocks aligned by their operands: the entry point of one instruction set.
#pragma once

#include "operand_sums.h"
#include "operand_tiles.h"
#if defined(__AVX2__)
#include "operand_lanes.h"
#endif

namespace lpk {
namespace {

#if defined(__AVX2__)
// The range of the values from which the sums of the tile go on.
inline OperandRange started_from(const Tile& t) {
  OperandRange all = range_of_zeros();
  if (t.k0 == 0 && !t.started) return all;
  for (int64_t r = 0; r < t.rows; ++r)
    all = merged(all, operand_range(t.inner + r * t.stride, t.lanes));
  return all;
}

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
    if (left >= kMostVectors) {
      lane += run_operand_group<T, kMostVectors, kPlain>(group, end, lane, exact);
    } else if (left >= 2) {
      lane += run_operand_group<T, 2, kPlain>(group, end, lane, exact);
    } else {
      // One vector is a panel.
      if constexpr (kWidth == kPanel)
        lane += run_operand_group<T, 1, kPlain>(group, end, lane, exact);
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
  const OperandGroup<T> group{t,
                              acc,
                              blocks,
                              proof,
                              rows.size.data(),
                              rows.side.data(),
                              rows.place.data(),
                              t.exchanged ? left : right};
  proof.plain ? run_operand_groups<T, true>(group, end, exact)
              : run_operand_groups<T, false>(group, end, exact);
  return true;
}
#endif

template <class V>
void accumulate_operands_tile(const Tile& unmarked) {
  const Accumulator acc = accumulator_from(unmarked.accumulator);
  thread_local OperandBlocks blocks;
  blocks.list(unmarked, acc);
  const auto exact = [&](int64_t first, int64_t last) {
    run_operand_sums<V>(unmarked.marked(), acc, blocks, first, last);
  };
#if defined(__AVX2__)
  if (!unmarked.spread()) {
    const ChunkEnd<V> end(acc);
    const OperandRange state = started_from(unmarked);
    if (run_operand_lanes<float>(unmarked, acc, blocks, state, end, exact)) return;
    if (run_operand_lanes<double>(unmarked, acc, blocks, state, end, exact)) return;
  }
#endif
  exact(0, unmarked.lanes);
}

}  // namespace
}  // namespace lpk
