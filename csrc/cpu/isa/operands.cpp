#include "cpu/sums/ordered/operands_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

void accumulate_operands(const Tile& t) { accumulate_operands_tile<DoubleVector>(t); }

}  // namespace lpk::LPK_ISA
