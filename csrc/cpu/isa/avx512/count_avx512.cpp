#include "cpu/elementwise/count_kernel.h"

namespace lpk {

const CountKernels kAvx512Counts = {count_words<Bits32<16>>, write_words<Bits32<16>>,
                                    count_span<Vec<8>>, count_affine};

}  // namespace lpk
