#include "cpu/isa/kernels.h"
#include "cpu/isa/vector_tiers.h"

namespace lpk {
namespace {

constexpr Kernels with_accumulate(const char* isa, void (*accumulate)(const Tile&)) {
  return kernels_of<Bits32<4>, Vec<2>>(
      isa, accumulate, accumulate_ordered_neon,
      {&kNeonCounts, &kNeonBlocks, &kNeonHadamard, &kNeonEvents, update_piece_neon,
       grouped_row_neon, accumulate_scaled_neon, nullptr});
}

}  // namespace

const Kernels kNeonKernels = with_accumulate("neon", accumulate_tile<Vec<2>>);
const Kernels kNeonFp16Kernels = with_accumulate("neonfp16", accumulate_half_first<Vec<2>>);

}  // namespace lpk
