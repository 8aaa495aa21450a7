#include "cpu/elementwise/hadamard_kernel.h"

namespace lpk {

uint32_t hadamard_tile_avx512(const HadamardTile& t) { return hadamard_tile<Vec<8>>(t); }

}  // namespace lpk
