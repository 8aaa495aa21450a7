#include "cpu/elementwise/hadamard_kernel.h"

namespace lpk {

const HadamardKernels kAvx2Hadamard = {hadamard_side_by_side<Vec<4>>, hadamard_one_by_one<Vec<4>>};

}  // namespace lpk
