#include "cpu/isa/kernels.h"
#include "cpu/isa/vector_tiers.h"

namespace lpk {
namespace {

constexpr Kernels with_accumulate(const char* isa, void (*accumulate)(const Tile&)) {
  return kernels_of<Bits32<16>, Vec<8>>(
      isa, accumulate, accumulate_ordered_avx512,
      {&kAvx512Counts, &kAvx512Blocks, &kAvx512Hadamard, &kAvx512Events, update_piece_avx512,
       grouped_row_avx512, accumulate_scaled_avx512, accumulate_scaled_avx512vnni});
}

}  // namespace

const Kernels kAvx512Kernels = with_accumulate("avx512", accumulate_tile<Vec<8>>);
#if defined(LPK_AVX512FP16)
const Kernels kAvx512Fp16Kernels = with_accumulate("avx512fp16", accumulate_half_first<Vec<8>>);
#endif

}  // namespace lpk
