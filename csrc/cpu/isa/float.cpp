// The float tier: sums in float32 lanes, in the modes that people train with; the double tier has
// the others.
#include "cpu/sums/exact/float_kernel.h"
#include "units.h"

namespace lpk {

namespace {

template <Rounding kMode>
bool try_mode(const Tile& t, const Accumulator& acc, const OperandRange& a, const OperandRange& b) {
  using L = RoundedLanes<float>;
  return try_sum<NarrowRule<L, kMode>>(t, acc, a, b) ||
         try_sum<NarrowRule<L, kMode, false>>(t, acc, a, b) ||
         try_sum<WideRule<kMode>>(t, acc, a, b) || try_sum<SameRule<kMode>>(t, acc, a, b) ||
         try_power<L, kMode>(t, acc, a, b);
}

}  // namespace

bool run_float_tile(const Tile& t, const Accumulator& acc, const OperandRange& a,
                    const OperandRange& b) {
  switch (acc.rounding) {
    case Rounding::kNearestEven:
      return try_mode<Rounding::kNearestEven>(t, acc, a, b);
    case Rounding::kTowardZero:
      return try_mode<Rounding::kTowardZero>(t, acc, a, b);
    case Rounding::kStochastic:
      return try_mode<Rounding::kStochastic>(t, acc, a, b);
    default:
      return false;
  }
}

}  // namespace lpk
