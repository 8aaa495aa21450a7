#include "cpu/elementwise/block_kernel.h"

namespace lpk {

const BlockKernels kAvx2Blocks = block_kernels_of<Bits32<8>, Vec<4>>();

}  // namespace lpk
