// The roundings of the processor, and the one that goes with each of our modes.
#pragma once

#include "control_word.h"
#include "portable.h"

namespace lpk {
namespace {

// The processor's mode for one of ours. Our modes that look at magnitudes round these toward zero.
constexpr int hardware_mode(Rounding mode) {
  return mode == Rounding::kNearestEven      ? kNearestMode
         : mode == Rounding::kTowardPositive ? kUp
         : mode == Rounding::kTowardNegative ? kDown
                                             : kZero;
}

// The usual rounding, or instructions that take a rounding of their own: nothing to set.
struct UsualRounding {
  using Paused = UsualRounding;
};

// The processor rounds by `mode`, for instructions that take no rounding of their own.
struct ProcessorMode : ControlScope {
  explicit ProcessorMode(int mode) : ControlScope(rounding_by(mode, control_word())) {}
};

// The same for a mode known to the compiler.
template <int kMode>
struct ProcessorRounding : ProcessorMode {
  // Inside, the processor rounds to nearest again.
  using Paused = ProcessorRounding<kNearestMode>;

  ProcessorRounding() : ProcessorMode(kMode) {}
};

// For lanes L whose instructions take a rounding (`RoundedLanes`): the exact sum brought to their
// precision in a way that a second rounding cannot tell.

// Infinity's bits: all of the exponent.
template <class L>
constexpr int64_t kInfinityBits = L::kMantissa == 52 ? 0x7ff0000000000000 : 0x7f800000;

// The exact sum, made odd, from the same sum rounded down and up: they are equal, or neighbours,
// and then one of the two has an odd last bit. An exact zero has the sign of `up`: +0 unless both
// addends are -0, as in nearest mode. Past the largest number the odd neighbour is the finite one.
template <class L>
LPK_HD typename L::F odd_of_bracket(typename L::F down, typename L::F up) {
  return L::select(L::any_bit(L::bits(down), L::word(1)), down, up);
}

template <Rounding kMode>
constexpr bool kMadeOdd = kMode == Rounding::kNearestEven || kMode == Rounding::kToOdd;

// a b + c, or a b, or b + c, in the lanes' precision as the table of float_lane_rules.h says.
template <class L, Rounding kMode, class F = typename L::F>
LPK_HD F sum_of_product(F a, F b, F c) {
  if constexpr (kMadeOdd<kMode>) {
    return odd_of_bracket<L>(L::template fma<kDown>(a, b, c), L::template fma<kUp>(a, b, c));
  } else {
    return L::template fma<hardware_mode(kMode)>(a, b, c);
  }
}

template <class L, Rounding kMode, class F = typename L::F>
LPK_HD F product_alone(F a, F b) {
  if constexpr (kMadeOdd<kMode>) {
    return odd_of_bracket<L>(L::template mul<kDown>(a, b), L::template mul<kUp>(a, b));
  } else {
    return L::template mul<hardware_mode(kMode)>(a, b);
  }
}

template <class L, Rounding kMode, class F = typename L::F>
LPK_HD F sum_alone(F b, F c) {
  if constexpr (kMadeOdd<kMode>) {
    return odd_of_bracket<L>(L::template add<kDown>(b, c), L::template add<kUp>(b, c));
  } else {
    return L::template add<hardware_mode(kMode)>(b, c);
  }
}

}  // namespace
}  // namespace lpk
