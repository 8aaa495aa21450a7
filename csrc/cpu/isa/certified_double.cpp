#include "cpu/sums/certified/certified_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

bool run_certified_double(const CertifiedJob& job) {
  // The float tier needs one operation a product for float32 itself.
  if (Isa::kRoundsAsTold && is_float32(job.acc.fmt)) return false;
  return run_certified_tile<Doubles<Isa::kDoubles>>(job);
}

}  // namespace lpk::LPK_ISA
