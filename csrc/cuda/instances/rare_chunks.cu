// Certified sums to nearest in chunks that are seldom asked for: clipped, made odd, in double, in
// half precision and bfloat16 by the processor's own arithmetic and conversions.
#include "certified.h"
#include "cuda/rules/convert_rule.h"
#include "cuda/rules/double_rules.h"

namespace lpk::cuda {
namespace {

template <bool kTables>
struct Square {
  template <class Rule>
  using Of = CertifiedTile<Rule, kTables, true>;
};

template <bool kTables>
using OtherTiers = Tiers<Made<Tier::kDoubleSplit, CertifiedTile<DoubleSplitRule, kTables, true>>,
                         Made<Tier::kDoubleFloor, CertifiedTile<DoubleFloorRule, kTables, true>>,
                         Made<Tier::kConverted, CertifiedTile<ConvertRule, kTables, true>>,
                         Made<Tier::kHardwareHalf, HalfTile<false, kTables, true>>,
                         Made<Tier::kHardwareBfloat16, HalfTile<true, kTables, true>>>;

}  // namespace

void launch_rare_chunks(const Job& job, cudaStream_t stream) {
  with_tables(job, [&](auto tables) {
    constexpr bool kTables = decltype(tables)::value;
    Joined<RareTiers<Square<kTables>::template Of>, OtherTiers<kTables>>::Of::launch(job, stream);
  });
}

}  // namespace lpk::cuda
