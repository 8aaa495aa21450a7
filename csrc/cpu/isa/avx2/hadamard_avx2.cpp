#include "cpu/elementwise/hadamard_kernel.h"

namespace lpk {

uint32_t hadamard_tile_avx2(const HadamardTile& t) { return hadamard_tile<Vec<4>>(t); }

}  // namespace lpk
