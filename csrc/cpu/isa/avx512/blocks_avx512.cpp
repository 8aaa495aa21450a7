#include "cpu/elementwise/block_kernel.h"

namespace lpk {

const BlockKernels kAvx512Blocks = block_kernels_of<Bits32<16>, Vec<8>>();

}  // namespace lpk
