#include "cpu/sums/ordered/operand_sums.h"
#include "units.h"
#if defined(__AVX2__) || defined(LPK_NEON)
#include "cpu/sums/ordered/operand_groups.h"
#endif

namespace lpk::LPK_ISA {

void accumulate_operands(const Tile& unmarked) {
  const Accumulator acc = accumulator_from(unmarked.accumulator);
  thread_local OperandBlocks blocks;
  blocks.list(unmarked, acc);
  const auto exact = [&](int64_t first, int64_t last) {
    run_operand_sums<DoubleVector>(unmarked.marked(), acc, blocks, first, last);
  };
#if defined(__AVX2__) || defined(LPK_NEON)
  if (run_operand_vectors(unmarked, acc, blocks, exact)) return;
#endif
  exact(0, unmarked.lanes);
}

}  // namespace lpk::LPK_ISA
