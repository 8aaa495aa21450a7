#include "cpu/isa/kernels.h"
#include "cpu/isa/vector_tiers.h"

namespace lpk {

const Kernels kAvx2Kernels = kernels_of<Bits32<8>, Vec<4>>(
    "avx2", accumulate_tile<Vec<4>>, accumulate_ordered_avx2,
    {&kAvx2Counts, &kAvx2Blocks, &kAvx2Hadamard, &kAvx2Events, update_piece_avx2, grouped_row_avx2,
     accumulate_scaled_avx2, nullptr});

}  // namespace lpk
