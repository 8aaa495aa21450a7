// Products of any width rounded to nearest under a certificate, for certified sums.
//
// Rounding to q = man_bits + 1 bits adds a large M to the product, exact inside one multiply-add,
// and takes M away again, which is exact: the sum is rounded once, on the grid of M's binade.
#pragma once

#include "certified_kernel.h"

namespace lpk {
namespace {

// The certificate of products that are rounded in the accumulator's product format and computed
// times 2^shift.
struct ProductCertificate {
  bool valid;
  int shift;
  bool watched;    // they may overflow to infinity: then 2 is where that begins
  bool saturates;  // they may overflow, and stop at max
};

// `factor` is the operand that is scaled, b the one in lanes.
inline ProductCertificate certify_products(const Accumulator& acc, const AddendRange& p,
                                           const OperandRange& factor, const OperandRange& b) {
  constexpr ProductCertificate kNone{false, 0, false, false};
  const Format& f = acc.product;
  if (acc.product_rounding != Rounding::kNearestEven || f.kind != Kind::kFloat) return kNone;
  if (!p.plain || !f.subnormals || f.man_bits < 1 || f.man_bits > 21) return kNone;
  const bool overflows = p.highest > log2_of(f.max);
  const bool saturates = overflows && f.overflow == Overflow::kSaturate;
  const bool watched = overflows && !saturates;
  const int shift = watched ? 1 - overflow_exponent(f) : 0;
  const int large = 25 - f.man_bits;  // M is below 2^large |p|
  // 2^shift a float; exact factors; M normal, and finite unless infinities are watched; values of
  // the format.
  if (shift > 127 || factor.lowest + shift < -126 || factor.highest + shift > 127) return kNone;
  if (b.highest + std::max(shift, 0) + large > 127 || f.emin + shift < -126) return kNone;
  if (!watched && p.highest + shift + large > 127) return kNone;
  if (f.emin + shift + large > 126 || f.emin - f.man_bits + shift < -149) return kNone;
  return {true, shift, watched, saturates};
}

// Products that do not overflow, for sums that are never -0, as the sign of a zero is lost. With
// K = 2^(24 - q), 2 q <= 22, and M = K p rounded to float32, but never below 1.5 K min_normal:
//   u = fl(M - p),  h = M - u
// For |p| in [1, 2), up to a power of two and the sign, M lies in [K, 2 K], on the grid of 2^(1 -
// q). Where M - p >= K so does u: h is p rounded to that grid. If p is a tie it has no more than
// q + 1 bits, so that M is K p, an even integer on that grid, as q + 1 < 24: ties go to even.
// Below, where p - 1 <= 1 / (K - 1), the grid of u is half as wide and p nearer to 1 than a
// quarter of 2^(1 - q): h is 1. Under 1.5 min_normal M is 1.5 K min_normal, an even integer on
// the grid of the subnormals, and u stays in the binade of M. Products too small for float32 are
// among these.
template <class S, bool kWatchedProducts>
struct ShortProduct {
  using F = typename S::F;
  static constexpr bool kWatched = kWatchedProducts;
  F factor, least;
  F unit;  // the products' unit, in units of the sums

  ShortProduct(const Format& f, const ProductCertificate& c, int sum_shift)
      : factor(S::all(split_factor<S>(f))),
        least(S::all(std::ldexp(1.5 * split_factor<S>(f), f.emin + c.shift))),
        unit(S::all(std::ldexp(1.0, sum_shift - c.shift))) {}
  LPK_HD F enlarged(F b) const { return b * factor; }
  LPK_HD F operator()(F a, F b, F enlarged_b) const {
    const F wide = S::at_least(a * enlarged_b, least);
    return wide - S::fnma(a, b, wide);
  }
  LPK_HD F seen(F h) const { return h; }
};

// Every product and every sum: M is 1.5 2^(24 - q) times the binade of p, or of min_normal, so that
// M + p stays in its binade for q <= 22, on the grid of the format. A p that float32 rounds up to
// the next binade is rounded to its beginning on either grid.
template <class S>
struct FullProduct {
  using F = typename S::F;
  static constexpr bool kWatched = true;
  F magic, min_normal, most, unit;
  typename S::Word watched_bits;

  FullProduct(const Format& f, const ProductCertificate& c, int sum_shift)
      : magic(S::all(1.5 * split_factor<S>(f))),
        min_normal(S::all(std::ldexp(1.0, f.emin + c.shift))),
        most(S::all(c.saturates ? std::ldexp(f.max, c.shift) : HUGE_VAL)),
        unit(S::all(std::ldexp(1.0, sum_shift - c.shift))),
        watched_bits(c.watched ? S::kFromTwo : 0) {}
  LPK_HD F enlarged(F b) const { return b; }
  LPK_HD F operator()(F a, F b, F) const {
    const F p = a * b;
    const F wide = S::max(S::masked(p, S::kExponent), min_normal) * magic;
    return S::with_sign_of(S::at_most(S::fma(a, b, wide) - wide, most), p);
  }
  LPK_HD F seen(F h) const { return S::masked(h, watched_bits); }
};

// The modes that truncate, where instructions round as they are told; false for others.
template <class S, class Product>
bool run_truncating(const CertifiedWork<S>& work, const Product& product) {
  if constexpr (Isa::kRoundsAsTold) {
    if (work.acc.rounding == Rounding::kTowardZero)
      return run_certified(work, TruncationRule<S>(work.acc.fmt), product);
    if (work.acc.rounding == Rounding::kStochastic)
      return run_certified(work, StochasticRule<S>(work.acc.fmt), product);
  }
  return false;
}

template <class S>
bool run_full_products(const CertifiedWork<S>& work, const Certificate& c,
                       const FullProduct<S>& product) {
  const Format& f = work.acc.fmt;
  if (run_truncating(work, product)) return true;
  if constexpr (Isa::kRoundsAsTold) {
    if (one_digit_less(S::kPrecision, f)) return run_certified(work, BracketRule<S>(f), product);
  }
  if (f.emin + work.shift < -126) return false;
  if constexpr (kSumsOdd<S>) {
    if (c.odd) return run_certified(work, FloorRule<S, OddSum<S>>(f, work.shift), product);
  }
  return run_certified(work, FloorRule<S, NearestSum<S>>(f, work.shift), product);
}

// The rest: short products, whose sums are never -0.
template <class S>
bool run_short_products(const CertifiedWork<S>& work, const ProductCertificate& p) {
  const Accumulator& acc = work.acc;
  const ShortProduct<S, false> product(acc.product, p, work.shift);
  if (run_truncating(work, product)) return true;
  if (!splits_shortly<S>(acc.fmt))
    return run_certified(work, SplitRule<S, NearestSum<S>>(acc.fmt), product);
  const ShortSplitRule<S, NearestSum<S>> sum(acc.fmt);
  if (!p.watched) return run_certified(work, sum, product);
  return run_certified(work, sum, ShortProduct<S, true>(acc.product, p, work.shift));
}

// A tile whose products the accumulator rounds, in float32; false if there is no certificate.
template <class S>
bool run_rounded_tile(const CertifiedJob& job) {
  const Accumulator& acc = job.acc;
  const bool nearest = acc.rounding == Rounding::kNearestEven;
  const bool truncates =
      acc.rounding == Rounding::kTowardZero || acc.rounding == Rounding::kStochastic;
  if (products_stay(acc, job.a, job.b)) return false;
  if (!nearest && !(Isa::kRoundsAsTold && truncates)) return false;
  const AddendRange products = product_range(job.a, job.b);
  const ProductCertificate p = certify_products(acc, products, job.factor(), job.b);
  if (!p.valid) return false;
  const AddendRange addends = addend_range(acc, products);
  // Sums have a scale of their own, which the operands do not take.
  const OperandRange unscaled{true, false, 1, addends.highest, addends.highest};
  const Certificate c = certify<S>(job, addends, unscaled);
  if (!c.valid || (!kSumsOdd<S> && c.odd)) return false;
  const int shift = 1 - c.bound;
  if (std::abs(shift - p.shift) > 126) return false;
  const Operands<S> scaled(job, p.shift);
  const CertifiedWork<S> work{job, scaled, shift, c.reached};
  const bool brief = acc.product.man_bits <= 10 && !p.saturates && !c.odd && !c.floor &&
                     (!p.watched || (nearest && splits_shortly<S>(acc.fmt)));
  if (brief) return run_short_products(work, p);
  return run_full_products(work, c, FullProduct<S>(acc.product, p, shift));
}

}  // namespace
}  // namespace lpk
