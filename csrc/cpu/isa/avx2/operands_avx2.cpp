#include "cpu/sums/ordered/operands_kernel.h"

namespace lpk {

void accumulate_operands_avx2(const Tile& t) { accumulate_operands_tile<Vec<4>>(t); }

}  // namespace lpk
