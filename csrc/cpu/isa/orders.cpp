#include "cpu/sums/ordered/orders_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

void accumulate_ordered(const Tile& t) {
  accumulate_ordered_tile<DoubleVector>(t, accumulate_operands);
}

}  // namespace lpk::LPK_ISA
