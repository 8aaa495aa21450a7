#include "cpu/elementwise/count_kernel.h"

namespace lpk {

const CountKernels kScalarCounts = {count_elements<Bits32<1>>, count_span<Vec<1>>, count_affine};

}  // namespace lpk
