// The instruction sets that have kernels, and what the processor says of itself.
#pragma once

#include <vector>

#include "cpu/elementwise/block_kernels.h"
#include "cpu/elementwise/count.h"
#include "cpu/elementwise/hadamard.h"
#include "cpu/elementwise/update.h"
#include "cpu/sums/events/events.h"
#include "cpu/sums/grouped/grouped.h"
#include "cpu/sums/scaled/scaled.h"

namespace lpk {

// In orders_<isa>.cpp.
void accumulate_ordered_scalar(const Tile& t);
void accumulate_ordered_avx2(const Tile& t);
void accumulate_ordered_avx512(const Tile& t);
void accumulate_ordered_neon(const Tile& t);

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Fp16Kernels;
extern const Kernels kNeonKernels;
extern const Kernels kNeonFp16Kernels;

// All sets that were compiled, scalar first.
std::vector<const Kernels*> compiled_kernels();
// The compiled sets that this processor runs, the best one last.
std::vector<const Kernels*> kernels_of_processor();

}  // namespace lpk
