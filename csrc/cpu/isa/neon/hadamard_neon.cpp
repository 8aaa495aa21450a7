#include "cpu/elementwise/hadamard_kernel.h"

namespace lpk {

const HadamardKernels kNeonHadamard = {hadamard_side_by_side<Vec<2>>, hadamard_one_by_one<Vec<2>>};

}  // namespace lpk
