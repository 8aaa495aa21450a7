#include "cpu/isa/separate_tiers.h"
#include "cpu/sums/certified/certified_truncated.h"

namespace lpk {

bool run_truncated_neon(const Tile& t, const Accumulator& acc, const OperandRange& a,
                        const OperandRange& b, const ExactSums& exact) {
  return run_truncated_tile<Floats<4>>(t, acc, a, b, exact);
}

}  // namespace lpk
