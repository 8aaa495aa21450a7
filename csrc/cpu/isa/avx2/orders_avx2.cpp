#include "cpu/sums/ordered/orders_kernel.h"

namespace lpk {

void accumulate_ordered_avx2(const Tile& t) {
  accumulate_ordered_tile<Vec<4>>(t, accumulate_operands_avx2);
}

}  // namespace lpk
