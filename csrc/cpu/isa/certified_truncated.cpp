#include "cpu/sums/certified/certified_truncated.h"

#include "units.h"

namespace lpk::LPK_ISA {

bool run_truncated(const Tile& t, const Accumulator& acc, const OperandRange& a,
                   const OperandRange& b, const ExactSums& exact) {
  return run_truncated_tile<Floats<Isa::kWords>>(t, acc, a, b, exact);
}

}  // namespace lpk::LPK_ISA
