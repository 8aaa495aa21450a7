#include "cpu/sums/half/half_kernel.h"

namespace lpk {

void run_half_tile(const Tile& t, const HalfSums& sums, bool outer_is_half) {
  run_half_sums(t, sums, outer_is_half);
}

}  // namespace lpk
