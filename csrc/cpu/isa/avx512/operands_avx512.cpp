#include "cpu/sums/ordered/operands_kernel.h"

namespace lpk {

void accumulate_operands_avx512(const Tile& t) { accumulate_operands_tile<Vec<8>>(t); }

}  // namespace lpk
