// Formats without a mantissa in lanes of float32 or double, AVX-512.
#pragma once

#include "float_lane_rules.h"

namespace lpk {
namespace {

// nearest_even and to_odd in a format without a mantissa, whose values are zero and powers of two.
// nearest_even adds half of the binade to the bits, less one where the code is even: a tie goes on
// from odd codes only. to_odd adds a binade to even codes of inexact sums.
template <class Lanes, Rounding kRule>
struct PowerRule : LaneRule {
  using L = Lanes;
  using F = typename L::F;
  using I = typename L::I;
  using Mask = typename L::Mask;
  static constexpr Rounding kMode = kRule;
  F min_normal, vanishing, max, beyond;
  I half_less_one, flip;

  PowerRule(const Format& f, int)
      : min_normal(L::all(f.min_normal)),
        vanishing(L::all(kMode == Rounding::kToOdd ? 0.0 : f.min_normal / 2)),
        max(L::all(f.max)),
        beyond(L::all(f.beyond)),
        half_less_one(L::word((int64_t{1} << (L::kMantissa - 1)) - 1)),
        flip(L::word((kBias + f.emin - 1) & 1)) {}

  static bool fits(const Format& f, int) {
    if (f.kind != Kind::kFloat || f.man_bits != 0) return false;
    return L::kMantissa == 52 || (f.emin - 1 >= -126 && std::ilogb(f.max) <= 126);
  }

  LPK_HD F operator()(F s, const LaneDraws<L>&) const {
    const F a = L::abs(s);
    // The smallest of the values below min_normal become zero. A NaN is not among them: given a
    // NaN, max leaves its second operand.
    const I bits =
        L::bits(L::max_or_zero(L::template compare<_CMP_NLE_UQ>(a, vanishing), min_normal, a));
    const I odd = L::exponent_parity(bits, flip);
    const F number = L::select(L::template compare<_CMP_ORD_Q>(s, s), rounded(a, bits, odd), s);
    return L::with_sign_of(number, s);
  }

 private:
  static constexpr int kBias = L::kMantissa == 52 ? 1023 : 127;

  LPK_HD F rounded(F a, I bits, I odd) const {
    if constexpr (kMode == Rounding::kNearestEven) {
      const I carried = L::plus(L::plus(bits, half_less_one), odd);
      const F r = L::masked(L::value(carried), kInfinityBits<L>);
      return L::select(L::template compare<_CMP_GT_OQ>(r, max), beyond, r);
    } else {
      const F below = L::masked(L::value(bits), kInfinityBits<L>);
      // An exact sum is its own power of two.
      const Mask inexact = L::template compare<_CMP_NEQ_OQ>(below, a);
      const Mask even = static_cast<Mask>(~L::any_bit(odd, L::word(1)));
      const F r = L::select(inexact & even, below + below, below);
      const F finite = L::select(L::template compare<_CMP_GT_OQ>(r, max), max, r);
      return L::select(L::template compare<_CMP_EQ_OQ>(a, L::all(HUGE_VAL)), beyond, finite);
    }
  }
};

}  // namespace
}  // namespace lpk
