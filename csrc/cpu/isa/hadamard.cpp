#include "cpu/elementwise/hadamard_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

const HadamardKernels kHadamard = {hadamard_side_by_side<DoubleVector>,
                                   hadamard_one_by_one<DoubleVector>};

}  // namespace lpk::LPK_ISA
