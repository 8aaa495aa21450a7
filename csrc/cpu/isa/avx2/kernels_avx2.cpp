#include "cpu/isa/kernels.h"
#include "cpu/isa/vector_tiers.h"

namespace lpk {

const Kernels kAvx2Kernels = {"avx2",
                              accumulate_tile<Vec<4>>,
                              accumulate_ordered_avx2,
                              add_block<Vec<4>>,
                              transpose,
                              copy_panels,
                              measure,
                              round_block<Vec<4>>,
                              round_elements<Bits32<8>>,
                              encode_words<Bits32<8>>,
                              decode_words<Bits32<8>>,
                              narrow_codes<Bits32<8>>,
                              affine_span<Vec<4>>,
                              widen_floats<Vec<4>>,
                              narrow_floats<Vec<4>>,
                              widen_range<Vec<4>>};

}  // namespace lpk
