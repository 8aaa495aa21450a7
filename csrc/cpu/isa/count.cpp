#include "cpu/elementwise/count_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

const CountKernels kCounts = {count_words<WordVector>, write_words<WordVector>,
                              count_span<DoubleVector>, count_affine};

}  // namespace lpk::LPK_ISA
