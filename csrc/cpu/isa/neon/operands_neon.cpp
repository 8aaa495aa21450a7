#include "cpu/sums/ordered/operands_kernel.h"

namespace lpk {

void accumulate_operands_neon(const Tile& t) { accumulate_operands_tile<Vec<2>>(t); }

}  // namespace lpk
