#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cpu/isa/sets.h"

namespace lpk {
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
  const char* wanted = std::getenv("LPKERNELS_ISA");
  if (wanted == nullptr || *wanted == '\0') return *sets.back();
  for (const Kernels* each : sets) {
    if (std::strcmp(wanted, each->isa) == 0) return *each;
  }
  std::string names = sets.front()->isa;
  for (size_t i = 1; i < sets.size(); ++i) names += std::string(", ") + sets[i]->isa;
  throw std::invalid_argument(std::string("LPKERNELS_ISA=") + wanted + ": this processor runs " +
                              names + " of the compiled sets; unset it to take the best");
}

}  // namespace lpk
