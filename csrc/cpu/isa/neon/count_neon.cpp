#include "cpu/elementwise/count_kernel.h"

namespace lpk {

const CountKernels kNeonCounts = {count_words<Bits32<4>>, write_words<Bits32<4>>,
                                  count_span<Vec<2>>, count_affine};

}  // namespace lpk
