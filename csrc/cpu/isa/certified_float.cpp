#include "cpu/sums/certified/certified_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

bool run_certified_float(const Tile& t, const Accumulator& acc, const OperandRange& a,
                         const OperandRange& b, const ExactSums& exact) {
  return run_certified_tile<Floats<Isa::kWords>>(t, acc, a, b, exact);
}

}  // namespace lpk::LPK_ISA
