#include "cpu/elementwise/block_kernel.h"

namespace lpk {

const BlockKernels kNeonBlocks = block_kernels_of<Bits32<4>, Vec<2>>();

}  // namespace lpk
