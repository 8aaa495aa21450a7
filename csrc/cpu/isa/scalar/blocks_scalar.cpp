#include "cpu/elementwise/block_kernel.h"

namespace lpk {

const BlockKernels kScalarBlocks = block_kernels_of<Bits32<1>, Vec<1>>();

}  // namespace lpk
