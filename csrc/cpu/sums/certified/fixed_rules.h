// Fixed-point sums under a certificate: one multiply-add rounds to the grid, two operations
// saturate or three wrap.
//
// Sums are counted in quanta and carried with 1.5 2^23 added: in [2^23, 2^24) float32 is the grid
// of integers (double in [2^52, 2^53)), so that the processor's rounding of the exact a b + acc is
// the rounding to the format, and the last bit the parity of the integer. Sums that leave the
// binade are past the ends of the format (word_bits <= 22; in double every format's), and rounding
// is monotone: they saturate all the same. To wrap, sums must stay in the binade: products, and the
// sums that they join, have magnitudes of at most 2^21 (2^50 in double), so an unsigned format has
// one bit less. Where products are multiples of the quantum nothing is rounded at all, in any mode,
// and sums are carried as they are.
#pragma once

#include "certified_rules.h"

namespace lpk {
namespace {

// Whether the product format leaves every product as it is. A fixed format makes +0 of -0, but no
// fixed sum can tell the two apart.
inline bool products_stay_on_grid(const Format& product, const AddendRange& p) {
  if (product.kind != Kind::kFixed) return products_stay(product, p);
  const double bound = std::ldexp(1.0, p.highest);
  return p.plain && std::ldexp(1.0, p.lowest) >= product.quantum && bound <= product.max &&
         -bound >= product.lowest;
}

struct GridCertificate {
  bool valid;
  bool on_grid;  // products are whole quanta
  int shift;     // A times 2^shift counts quanta
};

inline GridCertificate certify_grid(const Precision& in, const Format& f, Rounding mode,
                                    const AddendRange& p, const OperandRange& state,
                                    const OperandRange& factor) {
  constexpr GridCertificate kNone{false, false, 0};
  if (f.kind != Kind::kFixed || !p.plain || !state.plain) return kNone;
  const int shift = -std::ilogb(f.quantum);
  const bool on_grid = p.lowest + shift >= 0;
  const bool wraps = f.overflow == Overflow::kWrap;
  // 2^shift is a number; A scaled stays exact and finite; no product is tiny.
  if (shift > 1 - in.emin || factor.lowest + shift < in.emin || factor.highest + shift > -in.emin)
    return kNone;
  // Sums in the other modes are too rare for kernels of their own.
  if (!on_grid && mode != Rounding::kNearestEven && mode != Rounding::kTowardZero) return kNone;
  const bool one_sided = wraps && f.lowest == 0;
  if (std::ilogb(f.modulus) > in.digits - 2 - one_sided && (wraps || !on_grid)) return kNone;
  if (wraps && p.highest + shift > in.digits - 3) return kNone;
  return {true, on_grid, shift};
}

template <class S, Rounding kMode, bool kWraps>
struct GridRule : RuleOf<S, false, false, false> {
  using F = typename S::F;
  static_assert(kMode == Rounding::kNearestEven || kMode == Rounding::kTowardZero);
  using Direction = std::conditional_t<kMode == Rounding::kNearestEven, UsualRounding,
                                       typename S::template Direction<kDown>>;
  F bias, lowest, highest;
  typename S::I unused;  // bits of a word that are not the format's
  bool is_signed;

  GridRule(const Format& f, bool on_grid)
      : bias(S::all(on_grid && !kWraps ? 0.0 : std::ldexp(1.5, S::kPrecision.digits - 1))),
        lowest(S::all(f.lowest / f.quantum) + bias),
        highest(S::all(f.max / f.quantum) + bias),
        unused(S::all_words(S::kWordBits - std::ilogb(f.modulus))),
        is_signed(f.lowest < 0) {}

  LPK_HD F enter(F sum) const { return sum + bias; }
  LPK_HD F leave(F sum) const {
    // When the processor rounds down, a difference of zero is -0.
    constexpr bool kDownwards = std::is_same_v<Direction, ProcessorRounding<kDown>>;
    if constexpr (kDownwards) {
      return S::negated(bias - sum);
    } else {
      return sum - bias;
    }
  }

  LPK_HD F fma(F a, F b, F sum) const {
    if constexpr (kMode == Rounding::kNearestEven) {
      return S::fma(a, b, sum);
    } else {
      const F down = S::template fma_rounded<kDown>(a, b, sum);
      return S::at_least_zero(down, bias, down, S::fma_up(a, b, sum));
    }
  }

  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    if constexpr (kWraps) {
      return S::sum_of_words(S::words(bias), wrapped(S::words(s)));
    } else {
      return S::min(S::max(s, lowest), highest);
    }
  }

 private:
  // The bits of bias below 2^22 (2^51) are zero: those of s are the integer's own.
  LPK_HD typename S::I wrapped(typename S::I s) const {
    const typename S::I top = S::shift_left(s, unused);
    return is_signed ? S::shift_right(top, unused) : S::shift_right_zeros(top, unused);
  }
};

}  // namespace
}  // namespace lpk
