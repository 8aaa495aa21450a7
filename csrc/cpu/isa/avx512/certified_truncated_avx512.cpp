#include "cpu/isa/separate_tiers.h"
#include "cpu/sums/certified/certified_truncated.h"

namespace lpk {

bool run_truncated_avx512(const Tile& t, const Accumulator& acc, const OperandRange& a,
                          const OperandRange& b, const ExactSums& exact) {
  return run_truncated_tile<Floats<16>>(t, acc, a, b, exact);
}

}  // namespace lpk
