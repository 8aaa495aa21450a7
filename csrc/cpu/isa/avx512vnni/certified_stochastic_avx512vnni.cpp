#include "cpu/draws/dot_draws.h"
#include "cpu/isa/separate_tiers.h"
#include "cpu/sums/certified/certified_truncated.h"

namespace lpk {

bool run_truncated_avx512vnni(const Tile& t, const Accumulator& acc, const OperandRange& a,
                              const OperandRange& b, const ExactSums& exact) {
  const int place = 22 - acc.fmt.man_bits - acc.random_bits;
  if (acc.rounding != Rounding::kStochastic ||
      !DotDraws::fits(draw_layout(acc.random_bits), place)) {
    return run_truncated_avx512(t, acc, a, b, exact);
  }
  using S = Floats<16>;
  if (!takes_products(acc, a, b)) return false;
  return run_truncated_rule<S, StochasticRule<S, DotDraws>>(t, acc, a, b, exact);
}

}  // namespace lpk
