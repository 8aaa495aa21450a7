#include "cpu/sums/exact/double_kernel.h"
#include "units.h"
#if defined(__AVX512F__)
#include "cpu/sums/exact/float_kernel.h"
#endif

namespace lpk::LPK_ISA {

void run_exact_tile(const Tile& t, const Accumulator& acc) {
#if defined(__AVX512F__)
  // Rules of float_lane_rules.h, faster than the rule of round.h.
  using L = RoundedLanes<double>;
  constexpr OperandRange kAny{};
  const bool done = !acc.rounds_every_step() && for_mode(acc.rounding, [&](auto mode) {
    return try_sum<NarrowRule<L, mode>>(t, acc, kAny, kAny) ||
           try_sum<NarrowRule<L, mode, false>>(t, acc, kAny, kAny) ||
           try_sum<FixedRule<L, mode>>(t, acc, kAny, kAny) ||
           try_power<L, mode>(t, acc, kAny, kAny);
  });
  if (done) return;
#endif
  run_double_tile<DoubleVector>(t, acc);
}

}  // namespace lpk::LPK_ISA
