#include "cpu/sums/scaled/scaled_kernel.h"

namespace lpk {

void accumulate_scaled_neon(const ScaledTile& t) { run_scaled_kernel(t, FloatSums{t}); }

}  // namespace lpk
