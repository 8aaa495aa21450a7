#include "kernels.h"

namespace lpk {

const Kernels kAvx512Kernels = {"avx512", accumulate_tile<Vec<8>>, transpose, round_block<Vec<8>>};

}  // namespace lpk
