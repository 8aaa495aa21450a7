#include "cpu/elementwise/hadamard_kernel.h"

namespace lpk {

const HadamardKernels kScalarHadamard = {hadamard_side_by_side<Vec<1>>,
                                         hadamard_one_by_one<Vec<1>>};

}  // namespace lpk
