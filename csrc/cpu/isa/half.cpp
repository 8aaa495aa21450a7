#include "cpu/sums/half/half_kernel.h"

namespace lpk {

void run_half_tile(const Tile& t, const HalfSums& sums) { run_half_sums(t, sums); }

}  // namespace lpk
