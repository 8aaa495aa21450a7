// Fixed-point formats in lanes of double, AVX-512, for any operands; fixed_rules.h has the sums
// under a certificate.
#pragma once

#include "float_lane_rules.h"

namespace lpk {
namespace {

// A saturating fixed-point format of at most 26 bits, in doubles: first stopped at its ends, where
// rounding leaves it, then rounded to the grid. Zeros are +0.
template <class Lanes, Rounding kRule>
struct FixedRule : LaneRule {
  using L = Lanes;
  using F = typename L::F;
  static constexpr bool kRare = true;
  static constexpr Rounding kMode = kRule;
  // Whether the sum itself is rounded, and not its magnitude.
  static constexpr bool kSigned =
      kMadeOdd<kMode> || kMode == Rounding::kTowardPositive || kMode == Rounding::kTowardNegative;
  F lowest, highest, magic, added;

  FixedRule(const Format& f, int random_bits)
      : lowest(L::all(f.lowest)),
        highest(L::all(f.max)),
        magic(L::all((kSigned ? 0x1.8p52 : 0x1p52) * f.quantum)),
        added(L::all(f.quantum *
                     std::ldexp(0.5, kMode == Rounding::kStochastic ? -random_bits : 0))) {}

  static bool fits(const Format& f, int random_bits) {
    return L::kMantissa == 52 && f.kind == Kind::kFixed && f.overflow == Overflow::kSaturate &&
           f.modulus <= 0x1p26 && random_bits <= 24;
  }

  LPK_HD F operator()(F s, const LaneDraws<L>& draws) const {
    // A NaN is the second operand, and stays.
    const F stopped = L::min(highest, L::max(lowest, s));
    if constexpr (kMode == Rounding::kToOdd) {
      return odd_of_bracket<L>(L::template add<kDown>(stopped, magic),
                               L::template add<kUp>(stopped, magic)) -
             magic;
    } else if constexpr (kSigned) {
      return L::template add<hardware_mode<kMode>()>(stopped, magic) - magic;
    } else {
      F a = L::abs(stopped);
      if constexpr (kMode == Rounding::kStochastic) {
        a = L::template fma<kZero>(draws.number(), added, a);
      } else if constexpr (kMode == Rounding::kNearestAway) {
        a = L::template add<kZero>(a, added);
      }
      const F r = L::template add<kZero>(a, magic) - magic;
      return L::with_sign_of(r, stopped) + L::all(0.0);
    }
  }
};

}  // namespace
}  // namespace lpk
