#include "cpu/elementwise/hadamard_kernel.h"

namespace lpk {

uint32_t hadamard_tile_scalar(const HadamardTile& t) { return hadamard_tile<Vec<1>>(t); }

}  // namespace lpk
