#include "sets.h"

#include <cstring>

#include "processor.h"

namespace lpk {

std::vector<const Kernels*> compiled_kernels() {
  return {
      &scalar::kKernels,
#if defined(LPK_AVX2)
      &avx2::kKernels,
#endif
#if defined(LPK_AVX512)
      &avx512::kKernels,
#endif
#if defined(LPK_AVX512FP16)
      &avx512::kHalfKernels,
#endif
#if defined(LPK_NEON_KERNELS)
      &neon::kKernels,       &neon::kHalfKernels,
#endif
  };
}

std::vector<const Kernels*> kernels_of_processor() {
  std::vector<const Kernels*> both;
  for (const Kernels* set : compiled_kernels()) {
    for (const char* name : sets_of_processor()) {
      if (std::strcmp(set->isa, name) == 0) both.push_back(set);
    }
  }
  return both;
}

bool has_vnni() {
#if defined(__x86_64__)
  static const bool vnni = runs_avx512vnni();
  return vnni;
#else
  return false;
#endif
}

}  // namespace lpk
