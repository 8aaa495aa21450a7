#include "cpu/elementwise/count_kernel.h"

namespace lpk {

const CountKernels kScalarCounts = {count_words<Bits32<1>>, write_words<Bits32<1>>,
                                    count_span<Vec<1>>, count_affine};

}  // namespace lpk
