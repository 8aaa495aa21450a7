#include "cpu/sums/ordered/operands_kernel.h"

namespace lpk {

void accumulate_operands_scalar(const Tile& t) { accumulate_operands_tile<Vec<1>>(t); }

}  // namespace lpk
