#include "kernels.h"

namespace lpk {

const Kernels kScalarKernels = {"scalar", accumulate_tile<Vec<1>>, transpose, round_block<Vec<1>>};

}  // namespace lpk
