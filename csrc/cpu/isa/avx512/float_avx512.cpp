// The float tier: sums in float32 lanes.
#include "cpu/isa/separate_tiers.h"
#include "cpu/sums/exact/float_kernel.h"

namespace lpk {

bool run_float_tile(const Tile& t, const Accumulator& acc, const OperandRange& a,
                    const OperandRange& b) {
  using L = RoundedLanes<float>;
  return for_mode(acc.rounding, [&](auto mode) {
    return try_sum<NarrowRule<L, mode>>(t, acc, a, b) ||
           try_sum<NarrowRule<L, mode, false>>(t, acc, a, b) ||
           try_sum<WideRule<mode>>(t, acc, a, b) || try_sum<SameRule<mode>>(t, acc, a, b) ||
           try_power<L, mode>(t, acc, a, b);
  });
}

}  // namespace lpk
