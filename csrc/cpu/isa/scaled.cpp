#include "cpu/sums/scaled/scaled_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

void accumulate_scaled(const ScaledTile& t) { run_scaled_kernel(t, FloatSums{t}); }

}  // namespace lpk::LPK_ISA
