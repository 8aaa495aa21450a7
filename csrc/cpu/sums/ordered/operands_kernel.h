// Blocks aligned by their operands: the entry point of one instruction set.
#pragma once

#include "operand_sums.h"

namespace lpk {
namespace {

// In vectors of the processor; false, and nothing done, without a certificate.
template <class I>
struct OperandVectors {
  template <class V, class Exact>
  static bool run(const Tile&, const Accumulator&, const OperandBlocks&, const Exact&) {
    return false;
  }
};

}  // namespace
}  // namespace lpk

#include "cpu/isa/operands_in_vectors.h"

namespace lpk {
namespace {

template <class V>
void accumulate_operands_tile(const Tile& unmarked) {
  const Accumulator acc = accumulator_from(unmarked.accumulator);
  thread_local OperandBlocks blocks;
  blocks.list(unmarked, acc);
  const auto exact = [&](int64_t first, int64_t last) {
    run_operand_sums<V>(unmarked.marked(), acc, blocks, first, last);
  };
  if (!OperandVectors<Isa>::template run<V>(unmarked, acc, blocks, exact)) exact(0, unmarked.lanes);
}

}  // namespace
}  // namespace lpk
