#include "cpu/elementwise/count_kernel.h"

namespace lpk {

const CountKernels kAvx2Counts = {count_words<Bits32<8>>, write_words<Bits32<8>>,
                                  count_span<Vec<4>>, count_affine};

}  // namespace lpk
