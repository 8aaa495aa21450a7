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
  using Of = FastTile<Rule, kTables, true>;
};

template <bool kTables>
using OtherTiers = Tiers<Made<Tier::kDoubleSplit, FastTile<DoubleSplitRule, kTables, true>>,
                         Made<Tier::kDoubleFloor, FastTile<DoubleFloorRule, kTables, true>>,
                         Made<Tier::kConverted, FastTile<ConvertRule, kTables, true>>,
                         Made<Tier::kNativeHalf, HalfTile<false, kTables, true>>,
                         Made<Tier::kNativeBfloat16, HalfTile<true, kTables, true>>>;

}  // namespace

void launch_rare_chunks(const Job& job, cudaStream_t stream) {
  with_tables(job, [&](auto tables) {
    constexpr bool kTables = decltype(tables)::value;
    Joined<RareTiers<Square<kTables>::template Of>, OtherTiers<kTables>>::Of::launch(job, stream);
  });
}

}  // namespace lpk::cuda
