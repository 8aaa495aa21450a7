#include "cpu/sums/certified/certified_products.h"

#include "units.h"

namespace lpk::LPK_ISA {

bool run_rounded_products(const CertifiedJob& job) {
  return run_rounded_tile<Floats<Isa::kWords>>(job);
}

}  // namespace lpk::LPK_ISA
