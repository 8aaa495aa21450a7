#include "cpu/sums/half/half_kernel.h"

namespace lpk {
namespace {

int mode_of(Rounding rounding) {
  switch (rounding) {
    case Rounding::kTowardZero:
      return kZero;
    case Rounding::kTowardPositive:
      return kUp;
    case Rounding::kTowardNegative:
      return kDown;
    default:
      return kNearestMode;
  }
}

}  // namespace

void run_half_tile(const Tile& t, const HalfSums& sums, bool outer_is_half) {
  const Accumulator acc = accumulator_from(t.accumulator);
  run_half_sums(t, acc, sums, outer_is_half, mode_of(acc.rounding));
}

}  // namespace lpk
