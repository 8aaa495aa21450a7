// The float tier: sums in float32 lanes, in the modes that people train with. The double tier has
// the other modes, and those rounded products that seldom lack a certificate.
#include "cpu/sums/exact/float_kernel.h"
#include "units.h"

namespace lpk {

namespace {

template <Rounding kMode>
bool try_mode(const Tile& t, const Accumulator& acc, const OperandRange& a, const OperandRange& b) {
  using L = RoundedLanes<float>;
  using Narrow = NarrowRule<L, Rounding::kNearestEven>;
  using Wide = WideRule<Rounding::kNearestEven>;
  if constexpr (kMode != Rounding::kNearestEven) {
    if (try_rules<NarrowRule<L, kMode>, Narrow>(t, acc) ||
        try_rules<WideRule<kMode>, Narrow>(t, acc))
      return true;
  }
  if constexpr (kMode != Rounding::kStochastic) {
    if (try_rules<SameRule<kMode>>(t, acc, a, b) || try_rules<SameRule<kMode>, Narrow>(t, acc) ||
        try_rules<SameRule<kMode>, Wide>(t, acc)) {
      return true;
    }
  }
  return try_rules<NarrowRule<L, kMode>>(t, acc, a, b) ||
         try_rules<NarrowRule<L, kMode, false>>(t, acc, a, b) ||
         try_rules<WideRule<kMode>>(t, acc, a, b);
}

}  // namespace

bool run_float_tile(const Tile& t, const Accumulator& acc, const OperandRange& a,
                    const OperandRange& b) {
  return for_mode(acc.rounding, [&](auto mode) {
    if constexpr (kCommon<mode>) return try_mode<mode>(t, acc, a, b);
    return false;
  });
}

}  // namespace lpk
