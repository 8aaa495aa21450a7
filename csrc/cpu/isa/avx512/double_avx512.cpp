// The double tier: sums in double lanes, by rules of their own, or by those of round.h.
#include "cpu/isa/separate_tiers.h"
#include "cpu/sums/exact/double_kernel.h"
#include "cpu/sums/exact/float_kernel.h"

namespace lpk {

void run_exact_tile(const Tile& t, const Accumulator& acc) {
  using L = RoundedLanes<double>;
  constexpr OperandRange kAny{};
  const bool done = !acc.rounds_every_step() && for_mode(acc.rounding, [&](auto mode) {
    return try_sum<NarrowRule<L, mode>>(t, acc, kAny, kAny) ||
           try_sum<NarrowRule<L, mode, false>>(t, acc, kAny, kAny) ||
           try_sum<FixedRule<L, mode>>(t, acc, kAny, kAny) ||
           try_power<L, mode>(t, acc, kAny, kAny);
  });
  if (!done) run_double_tile<Vec<8>>(t, acc);
}

}  // namespace lpk
