#include "sets.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

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

namespace {

std::atomic<int64_t> tier_products[static_cast<int>(Tier::kCount)];

}  // namespace

void count_products(Tier tier, int64_t products) {
  tier_products[static_cast<int>(tier)].fetch_add(products, std::memory_order_relaxed);
}

void take_counts(int64_t* counts) {
  for (int i = 0; i < static_cast<int>(Tier::kCount); ++i) counts[i] = tier_products[i].exchange(0);
}

const Kernels& kernels() {
  static const std::vector<const Kernels*> sets = kernels_of_processor();
  const char* name = std::getenv("LPKERNELS_ISA");
  if (name == nullptr || *name == '\0') return *sets.back();
  for (const Kernels* set : sets) {
    if (std::strcmp(name, set->isa) == 0) return *set;
  }
  std::string names = sets.front()->isa;
  for (size_t i = 1; i < sets.size(); ++i) names += std::string(", ") + sets[i]->isa;
  throw std::invalid_argument(std::string("LPKERNELS_ISA=") + name + ": this processor runs " +
                              names + " of the compiled sets; unset it to take the best");
}

}  // namespace lpk
