#include "cpu/sums/ordered/orders_kernel.h"

namespace lpk {

void accumulate_ordered_avx512(const Tile& t) {
  accumulate_ordered_tile<Vec<8>>(t, accumulate_operands_avx512);
}

}  // namespace lpk
