#include "cpu/sums/certified/certified_products.h"

#include "units.h"

namespace lpk::LPK_ISA {

bool run_rounded_products(const Tile& t, const Accumulator& acc, const OperandRange& a,
                          const OperandRange& b, const ExactSums& exact) {
  return run_rounded_tile<Floats<Isa::kWords>>(t, acc, a, b, exact);
}

}  // namespace lpk::LPK_ISA
