#include "cpu/sums/certified/certified_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

bool run_certified_double(const Tile& t, const Accumulator& acc, const OperandRange& a,
                          const OperandRange& b, const ExactSums& exact) {
  // The float tier needs one operation a product for float32 itself.
  if (Isa::kRoundsAsTold && is_float32(acc.fmt)) return false;
  return run_certified_tile<Doubles<Isa::kDoubles>>(t, acc, a, b, exact);
}

}  // namespace lpk::LPK_ISA
