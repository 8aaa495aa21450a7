#include "kernels.h"

namespace lpk {

const Kernels kAvx2Kernels = {"avx2", accumulate_tile<Vec<4>>, transpose, round_block<Vec<4>>};

}  // namespace lpk
