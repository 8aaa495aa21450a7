#include "cpu/sums/ordered/orders_kernel.h"

namespace lpk {

void accumulate_ordered_scalar(const Tile& t) {
  accumulate_ordered_tile<Vec<1>>(t, accumulate_operands_scalar);
}

}  // namespace lpk
