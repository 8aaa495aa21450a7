#include "cpu/elementwise/hadamard_kernel.h"

namespace lpk {

const HadamardKernels kAvx512Hadamard = {hadamard_side_by_side<Vec<8>>,
                                         hadamard_one_by_one<Vec<8>>};

}  // namespace lpk
