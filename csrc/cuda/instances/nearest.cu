// Certified sums to nearest without chunks: in float32, in half precision and bfloat16.
#include "certified.h"
#include "cuda/rules/convert_rule.h"

namespace lpk::cuda {
namespace {

template <bool kTables>
struct Square {
  template <class Rule>
  using Of = CertifiedTile<Rule, kTables, false>;
};

template <bool kTables>
using HalfTiers = Tiers<Made<Tier::kConverted, CertifiedTile<ConvertRule, kTables, false>>,
                        Made<Tier::kHardwareHalf, HalfTile<false, kTables, false>>,
                        Made<Tier::kHardwareBfloat16, HalfTile<true, kTables, false>>>;

}  // namespace

void launch_nearest(const Job& job, cudaStream_t stream) {
  with_tables(job, [&](auto tables) {
    constexpr bool kTables = decltype(tables)::value;
    Joined<NearestTiers<Square<kTables>::template Of>, RareTiers<Square<kTables>::template Of>,
           HalfTiers<kTables>>::Of::launch(job, stream);
  });
}

}  // namespace lpk::cuda
