#include "cpu/sums/half/half_kernel.h"

namespace lpk {

void run_half_tile(const Tile& t, const HalfSums& sums, bool outer_is_half) {
  const Accumulator acc = accumulator_from(t.accumulator);
  switch (acc.rounding) {
    case Rounding::kTowardZero:
      return run_half_mode<kZero>(t, acc, sums, outer_is_half);
    case Rounding::kTowardPositive:
      return run_half_mode<kUp>(t, acc, sums, outer_is_half);
    case Rounding::kTowardNegative:
      return run_half_mode<kDown>(t, acc, sums, outer_is_half);
    default:
      return run_half_mode<kNearestMode>(t, acc, sums, outer_is_half);
  }
}

}  // namespace lpk
