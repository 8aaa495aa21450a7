#include "cpu/isa/separate_tiers.h"
#include "cpu/sums/certified/certified_kernel.h"

namespace lpk {

bool run_certified_double_avx512(const Tile& t, const Accumulator& acc, const OperandRange& a,
                                 const OperandRange& b, const ExactSums& exact) {
  // The float tier needs one operation a product for float32 itself.
  if (SameRule<Rounding::kNearestEven>::fits(acc.fmt, 0)) return false;
  return run_certified_tile<Doubles<8>>(t, acc, a, b, exact);
}

}  // namespace lpk
