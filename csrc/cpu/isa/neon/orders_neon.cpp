#include "cpu/sums/ordered/orders_kernel.h"

namespace lpk {

void accumulate_ordered_neon(const Tile& t) {
  accumulate_ordered_tile<Vec<2>>(t, accumulate_operands_neon);
}

}  // namespace lpk
