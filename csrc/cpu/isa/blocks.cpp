#include "cpu/elementwise/block_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

const BlockKernels kBlocks = block_kernels_of<WordVector, DoubleVector>();

}  // namespace lpk::LPK_ISA
