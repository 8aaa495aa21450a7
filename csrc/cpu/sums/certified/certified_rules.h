// The arithmetic of certified sums: one rule for each way of rounding.
#pragma once

#include <cmath>

#include "cpu/lanes/certified_lanes.h"

namespace lpk {
namespace {

struct NoDraws {};

// What a rule of sums declares about itself.
//   kTracked       the certificate has a bound to watch
//   kKeepsZeros    the sign of a sum that becomes zero is kept, so that a tap that adds nothing
//                  must be passed over; keeps_zeros() says so of one rule
//   kClosesChunks  it rounds sums of two sums too
//   kTakesInfinities  sums may be infinite
// `joined` gathers sums so that `broken` tells whether any has reached the bound.
template <class S, bool kTrackedSums, bool kKeptZeros, bool kClosing>
struct RuleOf {
  static constexpr bool kTracked = kTrackedSums;
  static constexpr bool kKeepsZeros = kKeptZeros;
  static constexpr bool kClosesChunks = kClosing;
  static constexpr bool kTakesInfinities = false;
  static constexpr bool kStochastic = false;
  static constexpr int kRows = S::kRows;
  using F = typename S::F;
  LPK_HD static F joined(F a, F b) { return S::either(a, b); }
  LPK_HD static bool broken(F seen) { return S::any(seen, S::kFromTwo); }
  static bool keeps_zeros() { return kKeptZeros; }
  using LaneState = NoDraws;
  template <int kGroup>
  using PanelState = NoDraws;
  using Direction = UsualRounding;  // of the processor, while sums are made
};

// A running sum carried as it is.
template <class S>
struct PlainSum {
  LPK_HD typename S::F enter(typename S::F sum) const { return sum; }
  LPK_HD typename S::F leave(typename S::F sum) const { return sum; }
};

// Sums in float32: to nearest, or made odd.
template <class S>
struct NearestSum : PlainSum<S> {
  using F = typename S::F;
  LPK_HD F fma(F a, F b, F sum) const { return S::fma(a, b, sum); }
};

template <class S, bool kRoundsAsTold = Isa::kRoundsAsTold>
struct OddSum : PlainSum<S> {
  using L = RoundedLanes<typename S::Scalar>;
  using F = typename L::F;
  LPK_HD F fma(F a, F b, F sum) const { return sum_of_product<L, Rounding::kToOdd>(a, b, sum); }
};

// In double, whose products are exact: the nearest sum and its error (two-sum, Knuth).
template <class S>
struct OddSum<S, false> : PlainSum<S> {
  using F = typename S::F;
  using I = typename S::I;
  LPK_HD F fma(F a, F b, F sum) const { return add(a * b, sum); }
  LPK_HD F add(F p, F sum) const {
    const F s = sum + p;
    const F part = s - sum;
    const F error = (sum - (s - part)) + (p - part);
    const I inexact = (I)(error != 0.0);
    // 1 where the exact sum is nearer to zero than s: s is then made one place smaller before its
    // last bit is set.
    const I beyond = S::shift_right_zeros(S::words(error) ^ S::words(s), S::all_words(63));
    return (F)((S::words(s) - (beyond & inexact)) | (inexact & 1));
  }
};

// Rounding to q = man_bits + 1 bits of P (24 or 53) with K = 2^(P - q), for 2 q <= P - 2, in two
// operations:
//   u = fl(K s - s),  h = K s - u
// For s in [1, 2), up to a power of two and the sign, K s lies on the grid of 2^(1 - q) K, and so
// does u wherever K s - s >= K: then h is s rounded to that grid, to nearest. If s is a tie it is
// even as an integer, so that u has the parity of h: ties go to even. Below, where s - 1 < 2^-(P -
// q) (1 + 2^-(P - 1 - q)), the grid of u is half as wide; s is nearer to 1 than a quarter of 2^(1 -
// q) if P - q >= q + 2, and both grids give 1. h is exact, and a zero keeps its sign.
template <class S>
constexpr bool splits_shortly(const Format& f) {
  return 2 * (f.man_bits + 1) <= S::kPrecision.digits - 2;
}

// 2^(P - q).
template <class S>
double split_factor(const Format& f) {
  return std::ldexp(1.0, S::kPrecision.digits - 1 - f.man_bits);
}

template <class S, class Sum>
struct ShortSplitRule : RuleOf<S, true, false, true>, Sum {
  using F = typename S::F;
  F factor;

  explicit ShortSplitRule(const Format& f) : factor(S::all(split_factor<S>(f))) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    return S::split(s, factor);
  }
};

// The same, by one multiplication and two additions: Veltkamp's splitting, for as many as P - 2
// bits.
template <class S, class Sum>
struct SplitRule : RuleOf<S, true, false, true>, Sum {
  using F = typename S::F;
  F factor;

  explicit SplitRule(const Format& f) : factor(S::all(split_factor<S>(f) + 1.0)) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    const F wide = s * factor;
    return wide + (s - wide);
  }
};

// For formats that saturate: the largest value takes the place of sums that pass it.
template <class S, class Sum>
struct SaturatedRule : RuleOf<S, false, false, true>, Sum {
  using F = typename S::F;
  ShortSplitRule<S, Sum> split;
  F most;

  SaturatedRule(const Format& f, int shift) : split(f), most(S::all(std::ldexp(f.max, shift))) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws& draws) const {
    return S::at_most(split.round(s, draws), most);
  }
};

template <class S, class Sum>
struct FloorRule : RuleOf<S, true, true, true>, Sum {
  using F = typename S::F;
  F magic, min_normal;

  FloorRule(const Format& f, int shift)
      : magic(S::all(1.5 * split_factor<S>(f))),
        min_normal(S::all(std::ldexp(1.0, f.emin + shift))) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    const F binade = S::max(S::masked(s, S::kExponent), min_normal);
    const F wide = S::fma(binade, magic, s);
    return S::with_sign_of(S::fnma(binade, magic, wide), s);
  }
};

// The short split with K t in the place of K s: t is s, but never below 1.5 min_normal. From there
// up this is the rule above. Below, K t - s stays in the binade of K min_normal, on the grid of the
// subnormals, and K t is an even point of this grid. Only the sign of a zero is lost.
template <class S, class Sum>
struct ShortFloorRule : RuleOf<S, true, true, true>, Sum {
  using F = typename S::F;
  F factor, least;

  ShortFloorRule(const Format& f, int shift)
      : factor(S::all(split_factor<S>(f))), least(S::all(std::ldexp(1.5, f.emin + shift))) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    const F wide = S::at_least(s, least);
    return S::with_sign_of(S::fms(wide, factor, S::fms(wide, factor, s)), s);
  }
};

// Sums to nearest in all but one of the lanes' digits (22 bits below the first in float32): half of
// t = down + up, the ends of the bracket. Where they are neighbours t lies in the middle between
// their doubles and becomes the even one: a value of the format, and the nearest, as the sum lies
// between it and the odd end, itself in the middle between two values. Where they are equal t is
// twice the exact sum, and Veltkamp's splitting takes its last bit, ties to even: 1.5 t,
// t / 2 - 1.5 t and their sum (every mantissa was compared); an even t it leaves as it is. The sign
// of a zero is lost.
template <class S>
struct BracketRule : RuleOf<S, true, false, false>, PlainSum<S> {
  using L = RoundedLanes<typename S::Scalar>;
  using F = typename S::F;
  F half, factor;

  explicit BracketRule(const Format&) : half(S::all(0.5)), factor(S::all(1.5)) {}
  LPK_HD F fma(F a, F b, F sum) const {
    return L::template fma<kDown>(a, b, sum) + L::template fma<kUp>(a, b, sum);
  }
  LPK_HD F add(F p, F sum) const {
    return L::template add<kDown>(p, sum) + L::template add<kUp>(p, sum);
  }
  template <class Draws>
  LPK_HD F round(F t, const Draws&) const {
    const F wide = t * factor;
    return wide + S::fms(t, half, wide);
  }
};

// To nearest, ties to even, on the bits of float32 sums: half a place less one is added, then the
// last bit that is kept; the bits below are dropped.
template <class S>
struct EvenBits {
  using F = typename S::F;
  using I = typename S::I;
  I last, carry, keep;

  explicit EvenBits(const Format& f)
      : last(S::all_words(1 << (23 - f.man_bits))),
        carry(S::all_words((1 << (22 - f.man_bits)) - 1)),
        keep(S::all_words(-(1 << (23 - f.man_bits)))) {}
  LPK_HD F even(F s) const { return (F)(S::raised(S::words(s), carry, last) & keep); }
};

// For formats that overflow to infinity, scaled so that their largest binade is float32's: a sum
// that rounds up from there carries into infinity, and a sum beyond is infinite before it is
// rounded. Infinities stay, and so does the NaN that two of them make.
template <class S>
struct InfiniteRule : RuleOf<S, false, false, false>, NearestSum<S>, EvenBits<S> {
  static constexpr bool kTakesInfinities = true;
  using F = typename S::F;

  explicit InfiniteRule(const Format& f) : EvenBits<S>(f) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    return this->even(s);
  }
};

// Sums that the processor rounds in kMode's direction, cut off.
template <class S, int kMode = kZero>
struct TruncationRule : RuleOf<S, true, false, true>, PlainSum<S> {
  using F = typename S::F;
  using I = typename S::I;
  using Direction = typename S::template Direction<kMode>;
  I keep;

  explicit TruncationRule(const Format& f) : keep(S::all_words(-(1 << (23 - f.man_bits)))) {}
  LPK_HD F fma(F a, F b, F sum) const { return S::template fma_rounded<kMode>(a, b, sum); }
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    return (F)(S::words(s) & keep);
  }
};

template <class S, class Draws = typename S::Draws>
struct StochasticRule : TruncationRule<S> {
  static constexpr bool kStochastic = true;
  static constexpr bool kClosesChunks = false;
  using F = typename S::F;
  using LaneState = Draws;
  template <int kGroup>
  using PanelState = PanelDraws<typename S::V, kGroup>;
  using TruncationRule<S>::TruncationRule;
  LPK_HD F round(F s, const LaneState& draws) const {
    return TruncationRule<S>::round((F)draws.added_to((decltype(draws.words))s), draws);
  }
};

// Products are exact: a multiply-add takes them.
struct ExactProduct {
  static constexpr bool kWatched = false;
};

}  // namespace
}  // namespace lpk
