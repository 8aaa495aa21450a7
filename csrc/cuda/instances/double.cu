// Certified sums to nearest without chunks, in double.
#include "certified.h"
#include "cuda/rules/double_rules.h"

namespace lpk::cuda {

void launch_double(const Job& job, cudaStream_t stream) {
  with_tables(job, [&](auto tables) {
    constexpr bool kTables = decltype(tables)::value;
    Tiers<Made<Tier::kDoubleSplit, CertifiedTile<DoubleSplitRule, kTables, false>>,
          Made<Tier::kDoubleFloor, CertifiedTile<DoubleFloorRule, kTables, false>>>::launch(job,
                                                                                            stream);
  });
}

}  // namespace lpk::cuda
