// Sums under a certificate (common/certificate.h): two to four operations a product.
//
//   nearest_even   m <= 10: s = a b + acc;  u = 2^(23 - m) s - s;  acc = 2^(23 - m) s - u
//                  else     g = s (2^(23 - m) + 1);  acc = g + (s - g)     Veltkamp's splitting
//                  where subnormal sums can occur, the first with a floor, or 1.5 2^(23 - m)
//                  binades added and taken away, the binade at least min_normal's
//   other modes    acc = a b + acc truncated or rounded that way, then an addition to the bits
//                  below the last place, then these bits masked (certified_truncated.h)
// m is man_bits. Where float32 sums may not be rounded twice, nearest_even makes them odd first:
// two directed multiply-adds and a choice in place of one multiply-add; their sum t serves m = 22:
// g = 1.5 t, acc = g + (t / 2 - g). Rounded products take the place of a b (certified_products.h),
// unless rounding would change none.
//
// The certificate holds while sums stay below 2^bound. A or B is scaled so that 2^bound is 2: bit
// 30 is then set in a sum that has left the bound. This bit is looked at unless the operands are
// too small and too few to set it. A group with such a sum, or with a -0 to start from (the
// splitting would lose it), is restored and left to the caller; or, if sums overflow to infinity in
// float32 lanes, InfiniteRule makes it again. Absent taps are zeros here: they add nothing to sums
// that are never -0.
#pragma once

#include <optional>

#include "certified_group.h"

namespace lpk {
namespace {

template <class S>
constexpr bool kSumsOdd = Isa::kRoundsAsTold || S::kDouble;

template <class S, class Rule, class Product = ExactProduct>
bool run_certified(const CertifiedWork<S>& work, const Rule& rule, const Product& product = {}) {
  using Run = CertifiedRun<S, Rule, Product>;
  const Run run(work, rule, product);
  const Tile tile = rule.keeps_zeros() ? work.tile.marked() : work.tile;
  if (tile.spread()) {
    CertifiedGroups<Taps::kSpread, Run>(tile, run, work.exact).run();
    return true;
  }
  if constexpr (Rule::kKeepsZeros) {
    if (tile.absent != nullptr || tile.lane_absent != nullptr) {
      CertifiedGroups<Taps::kMarked, Run>(tile, run, work.exact).run();
      return true;
    }
  }
  CertifiedGroups<Taps::kPlain, Run>(tile, run, work.exact).run();
  return true;
}

template <class S, class Sum>
bool run_certified_nearest(const CertifiedWork<S>& work, bool floor) {
  const Format& f = work.acc.fmt;
  if constexpr (Isa::kRoundsAsTold) {
    if (floor && splits_shortly<S>(f))
      return run_certified(work, ShortFloorRule<S, Sum>(f, work.shift));
  }
  if (!floor && splits_shortly<S>(f)) return run_certified(work, ShortSplitRule<S, Sum>(f));
  // In double every format is short.
  if constexpr (!S::kDouble || !Isa::kRoundsAsTold) {
    if (floor) return run_certified(work, FloorRule<S, Sum>(f, work.shift));
  }
  if constexpr (!S::kDouble) return run_certified(work, SplitRule<S, Sum>(f));
  return false;
}

// The certificate of sums of such addends; `factor` is the operand that the sums' scale goes to.
template <class S>
Certificate certify(const CertifiedJob& job, const AddendRange& addends,
                    const OperandRange& factor) {
  const Accumulator& acc = job.acc;
  return certify(S::kPrecision, acc.fmt, acc.rounding, acc.random_bits, addends,
                 state_range<true>(job.tile, acc), factor, job.terms());
}

// Chooses the rule; false if there is none for the accumulator.
template <class S>
bool run_certified_rule(const CertifiedWork<S>& work, const Certificate& c) {
  if constexpr (Isa::kRoundsAsTold && !S::kDouble) {
    if (one_digit_less(S::kPrecision, work.acc.fmt))
      return run_certified(work, BracketRule<S>(work.acc.fmt));
  }
  if constexpr (kSumsOdd<S>) {
    if (c.odd) return run_certified_nearest<S, OddSum<S>>(work, c.floor);
  }
  return run_certified_nearest<S, NearestSum<S>>(work, c.floor);
}

template <class S, bool kWraps>
bool run_grid_rule(const CertifiedWork<S>& work, const GridCertificate& c) {
  const Accumulator& acc = work.acc;
  if (c.on_grid || acc.rounding == Rounding::kNearestEven)
    return run_certified(work, GridRule<S, Rounding::kNearestEven, kWraps>(acc.fmt, c.on_grid));
  return run_certified(work, GridRule<S, Rounding::kTowardZero, kWraps>(acc.fmt, false));
}

// Fixed-point sums of exact products.
template <class S>
bool run_grid_tile(const CertifiedJob& job) {
  const Tile& t = job.tile;
  const Accumulator& acc = job.acc;
  AddendRange products = product_range(job.a, job.b);
  if (!products.plain) return false;
  // It only matters here whether products are whole quanta.
  products.lowest = lowest_bit(t.a, t.a_floats()) + lowest_bit(t.b, t.lanes * t.depth);
  if (acc.has_product && !products_stay_on_grid(acc.product, products)) return false;
  const GridCertificate c = certify_grid(S::kPrecision, acc.fmt, acc.rounding, products,
                                         state_range<true>(t, acc), job.factor());
  if (!c.valid) return false;
  const Operands<S> scaled(job, c.shift);
  const CertifiedWork<S> work{job, scaled, c.shift, false};
  if (acc.fmt.overflow == Overflow::kWrap) return run_grid_rule<S, true>(work, c);
  return run_grid_rule<S, false>(work, c);
}

// The shift from a format's largest binade to float32's if the format ends in infinity, else 0.
inline int shift_of_infinity(const Format& f) {
  const int top = log2_of(f.max);
  const bool full_binade = overflow_exponent(f) == top + 1;
  return f.overflow == Overflow::kInfinity && full_binade && top > 0 ? 127 - top : 0;
}

// Makes the parts of the tile for which the certificate holds, and calls `exact` for the others.
// False if there is no certificate at all, as for products that must be rounded
// (certified_products.h) and other modes (certified_truncated.h).
template <class S>
bool run_certified_tile(const CertifiedJob& job) {
  const Accumulator& acc = job.acc;
  if (acc.fmt.kind == Kind::kFixed) return run_grid_tile<S>(job);
  if (acc.rounding != Rounding::kNearestEven || !products_stay(acc, job.a, job.b)) return false;
  const Certificate c = certify<S>(job, product_range(job.a, job.b), job.factor());
  if (!c.valid || (!kSumsOdd<S> && c.odd)) return false;
  const int shift = 1 - c.bound;
  const Operands<S> scaled(job, shift);
  const CertifiedWork<S> work{job, scaled, shift, c.reached};
  const bool overflows = c.reached && c.overflows && !c.odd && !c.floor;
  if (overflows && splits_shortly<S>(acc.fmt) && acc.fmt.overflow == Overflow::kSaturate) {
    using Sum = NearestSum<S>;
    return run_certified(work, SaturatedRule<S, Sum>(acc.fmt, shift));
  }
  if constexpr (!S::kDouble) {
    const int far = shift_of_infinity(acc.fmt);
    // Scaled operands stay finite, as they do where the bound is found.
    if (overflows && far > 0 && job.factor().highest + far <= 126) {
      std::optional<Operands<S>> again;
      const auto infinite = [&](const Tile& part) {
        if (!again) again.emplace(job, far, 0, 1);
        const CertifiedWork<S> rest{{part, acc, job.a, job.b, job.exact}, *again, far, false};
        run_certified(rest, InfiniteRule<S>(acc.fmt));
      };
      const CertifiedJob with_infinities{job.tile, acc, job.a, job.b, infinite};
      return run_certified_rule(CertifiedWork<S>{with_infinities, scaled, shift, c.reached}, c);
    }
  }
  return run_certified_rule(work, c);
}

}  // namespace
}  // namespace lpk
