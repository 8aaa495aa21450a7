#include "cpu/isa/kernels.h"

namespace lpk {

const Kernels kScalarKernels = {"scalar",
                                accumulate_tile<Vec<1>>,
                                accumulate_ordered_scalar,
                                add_block<Vec<1>>,
                                transpose,
                                copy_panels,
                                measure,
                                round_block<Vec<1>>,
                                round_elements<Bits32<1>>,
                                encode_words<Bits32<1>>,
                                decode_words<Bits32<1>>,
                                narrow_codes<Bits32<1>>,
                                affine_span<Vec<1>>,
                                widen_floats<Vec<1>>,
                                narrow_floats<Vec<1>>,
                                widen_range<Vec<1>>};

}  // namespace lpk
