#include "cpu/sums/certified/certified_truncated.h"

#include "units.h"

namespace lpk::LPK_ISA {

bool run_truncated(const CertifiedJob& job) { return run_truncated_tile<Floats<Isa::kWords>>(job); }

}  // namespace lpk::LPK_ISA
