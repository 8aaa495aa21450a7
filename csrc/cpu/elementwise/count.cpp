#include "count.h"

#include <cstring>

namespace lpk {

Tally::Tally(bool with_histogram) : histogram(with_histogram) {
  if (histogram) std::memset(bins, 0, sizeof bins);
}

int64_t Tally::bin(int field) const {
  int64_t count = 0;
  for (const auto& each : bins) count += each[field];
  return count;
}

void Tally::add_to(int64_t* to) const {
  const auto add = [to](int at, int64_t count) {
    if (count != 0) __atomic_fetch_add(to + at, count, __ATOMIC_RELAXED);
  };
  for (int i = 0; i < kCounts; ++i) add(i, counts[i]);
  for (int e = 0; histogram && e < kBins; ++e) add(kCounts + e, bin(e));
}

const CountKernels& count_kernels() {
#if defined(LPK_X86)
  const char* isa = kernels().isa;
  if (std::strncmp(isa, "avx512", 6) == 0) return kAvx512Counts;
  if (std::strcmp(isa, "avx2") == 0) return kAvx2Counts;
#endif
  return kScalarCounts;
}

}  // namespace lpk
