#include "kernels.h"

namespace lpk {

const Kernels kAvx512Kernels = {"avx512",
                                accumulate_tile<Vec<8>>,
                                transpose,
                                round_block<Vec<8>>,
                                round_elements<Bits32<16>>,
                                encode_words<Bits32<16>>,
                                decode_words<Bits32<16>>,
                                affine_span<Vec<8>>,
                                widen_floats<Vec<8>>,
                                narrow_floats<Vec<8>>,
                                widen_range<Vec<8>>};

}  // namespace lpk
