#include "cpu/isa/separate_tiers.h"
#include "cpu/sums/certified/certified_kernel.h"

namespace lpk {

bool run_certified_double_neon(const Tile& t, const Accumulator& acc, const OperandRange& a,
                               const OperandRange& b, const ExactSums& exact) {
  return run_certified_tile<Doubles<2>>(t, acc, a, b, exact);
}

}  // namespace lpk
