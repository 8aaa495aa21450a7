#include "cpu/sums/certified/certified_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

bool run_certified_float(const CertifiedJob& job) {
  return run_certified_tile<Floats<Isa::kWords>>(job);
}

}  // namespace lpk::LPK_ISA
