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

// The kernels of each set; kHalfKernels are those of avx512fp16 and neonfp16.
namespace scalar {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels, kHalfKernels;
}
namespace neon {
extern const Kernels kKernels, kHalfKernels;
}

// All sets that were compiled, scalar first.
std::vector<const Kernels*> compiled_kernels();
// The compiled sets that this processor runs, the best one last.
std::vector<const Kernels*> kernels_of_processor();

}  // namespace lpk
