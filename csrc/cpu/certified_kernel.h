// Sums under a certificate (certificate.h): two to four operations a product.
//
//   nearest_even   s = a b + acc;  g = s (2^(23 - m) + 1);  acc = g + (s - g)     Veltkamp's
//   splitting
//                  where subnormal sums can occur: 1.5 2^(23 - m) binades added and taken away, the
//                  binade at least that of min_normal
//   toward_zero    acc = a b + acc truncated, and its bits masked
//   stochastic     the same with 2 draw + 1 added to the bits below the last place
// m is man_bits. Where float32 sums may not be rounded twice, nearest_even makes them odd first:
// two directed multiply-adds and a choice in place of one multiply-add. Rounded products take the
// place of a b; their own rounding is that of float_rules.h, or none where it would change nothing.
//
// The certificate holds while sums stay below 2^bound. A is scaled so that this is 2: then bit 30
// of a sum says that it did not, or that it is inf or NaN. A group with such a sum, or that starts
// from -0 (which the splitting would lose), is restored and left to the caller. Absent taps are
// zeros here: they add nothing to sums that are never -0. Where A is spread, B is scaled in its
// place.
#pragma once

#include "aligned.h"
#include "certified_group.h"

namespace lpk {
namespace {

template <class S, class Product, class Rule, class Exact>
bool run_certified(const Tile& t, const Accumulator& acc, const float* scaled, int shift,
                   const Rule& rule, const Exact& exact) {
  using Run = CertifiedRun<S, Rule, Product>;
  const Run run(acc, scaled, shift, rule);
  const Tile marked = Rule::kKeepsZeros ? t.marked() : t;
  if (t.spread()) {
    CertifiedGroups<Taps::kSpread, Run, Exact>(marked, run, exact).run();
    return true;
  }
  if constexpr (Rule::kKeepsZeros) {
    if (marked.absent != nullptr || marked.lane_absent != nullptr) {
      CertifiedGroups<Taps::kMarked, Run, Exact>(marked, run, exact).run();
      return true;
    }
  }
  CertifiedGroups<Taps::kPlain, Run, Exact>(t, run, exact).run();
  return true;
}

template <class S, class Sum, class Product, class Exact>
bool run_certified_nearest(const Tile& t, const Accumulator& acc, bool floor, const float* a,
                           int shift, const Exact& exact) {
  if (floor)
    return run_certified<S, Product>(t, acc, a, shift, FloorRule<S, Sum>(acc.fmt, shift), exact);
  return run_certified<S, Product>(t, acc, a, shift, SplitRule<S, Sum>(acc.fmt), exact);
}

// Chooses the rule; false if there is none for the accumulator.
template <class S, class Product, class Exact>
bool run_certified_rule(const Tile& t, const Accumulator& acc, const Certificate& c, const float* a,
                        int shift, const Exact& exact) {
  if (acc.rounding == Rounding::kNearestEven && !c.odd) {
    return run_certified_nearest<S, NearestSum<S>, Product>(t, acc, c.floor, a, shift, exact);
  }
#if defined(__AVX512F__)
  switch (acc.rounding) {
    case Rounding::kNearestEven:
      return run_certified_nearest<S, OddSum<S>, Product>(t, acc, c.floor, a, shift, exact);
    case Rounding::kTowardZero:
      return run_certified<S, Product>(t, acc, a, shift, TruncationRule<S>(acc.fmt), exact);
    case Rounding::kStochastic:
      return run_certified<S, Product>(t, acc, a, shift, StochasticRule<S>(acc.fmt), exact);
    default:
      return false;
  }
#else
  return false;
#endif
}

// The running sums that a tile goes on from.
inline OperandRange state_range(const Tile& t) {
  OperandRange all{true, true, 1, 0, 0};
  if (t.k0 == 0) return all;
  for (int64_t r = 0; r < t.rows; ++r)
    all = merged(all, operand_range(t.inner + r * t.stride, t.lanes));
  return all;
}

// A, or B where A is spread, times 2^shift.
inline const float* scaled_operand(const Tile& t, int shift) {
  const float* x = t.spread() ? t.b : t.a;
  const int64_t count = (t.spread() ? t.lanes : t.rows) * t.depth;
  thread_local AlignedFloats scaled;
  scaled.resize(count);
  const float scale = std::ldexp(1.0f, shift);
  std::transform(x, x + count, scaled.begin(), [=](float v) { return v * scale; });
  return scaled.data();
}

template <class S, bool kWraps, class Exact>
bool run_grid_rule(const Tile& t, const Accumulator& acc, const GridCertificate& c, const float* a,
                   const Exact& exact) {
  const auto run = [&](auto rule) {
    return run_certified<S, ExactProduct>(t, acc, a, c.shift, rule, exact);
  };
  using Mode = Rounding;
  if (c.on_grid || acc.rounding == Mode::kNearestEven)
    return run(GridRule<S, Mode::kNearestEven, kWraps>(acc.fmt, c.on_grid));
#if defined(__AVX512F__)
  switch (acc.rounding) {
    case Mode::kTowardZero:
      return run(GridRule<S, Mode::kTowardZero, kWraps>(acc.fmt, false));
    case Mode::kTowardPositive:
      return run(GridRule<S, Mode::kTowardPositive, kWraps>(acc.fmt, false));
    case Mode::kTowardNegative:
      return run(GridRule<S, Mode::kTowardNegative, kWraps>(acc.fmt, false));
    case Mode::kToOdd:
      return run(GridRule<S, Mode::kToOdd, kWraps>(acc.fmt, false));
    default:
      return false;
  }
#else
  return false;
#endif
}

// Fixed-point sums of exact products.
template <class S, class Exact>
bool run_grid_tile(const Tile& t, const Accumulator& acc, const OperandRange& a,
                   const OperandRange& b, const Exact& exact) {
  AddendRange products = product_range(a, b);
  if (!products.plain) return false;
  // Whole quanta or not is what matters here.
  products.lowest = lowest_bit(t.a, t.a_floats()) + lowest_bit(t.b, t.lanes * t.depth);
  if (acc.has_product && !products_stay_on_grid(acc.product, products)) return false;
  const OperandRange& factor = t.spread() ? b : a;
  const GridCertificate c = certify_grid(acc.fmt, acc.rounding, products, state_range(t), factor);
  if (!c.valid) return false;
  const float* scaled = scaled_operand(t, c.shift);
  if (acc.fmt.overflow == Overflow::kWrap) return run_grid_rule<S, true>(t, acc, c, scaled, exact);
  return run_grid_rule<S, false>(t, acc, c, scaled, exact);
}

// Runs the tile where the certificate holds and `exact` on the parts where it does not; false if
// there is none at all.
template <class S, class Exact>
bool run_certified_tile(const Tile& t, const Accumulator& acc, const OperandRange& a,
                        const OperandRange& b, const Exact& exact) {
  if (acc.fmt.kind == Kind::kFixed) return run_grid_tile<S>(t, acc, a, b, exact);
  if (sizeof(typename S::F) < 64 && acc.rounding != Rounding::kNearestEven) return false;
  const AddendRange products = product_range(a, b);
  const bool rounds = acc.has_product && !products_stay(acc.product, products);
  const AddendRange addends = addend_range(acc, a, b);
  const Certificate certificate =
      certify(acc.fmt, acc.rounding, acc.random_bits, addends, state_range(t), t.spread() ? b : a);
  if (!certificate.valid) return false;
#if !defined(__AVX512F__)
  if (certificate.odd || rounds) return false;
#endif
  const int shift = 1 - certificate.bound;
  if (rounds && !rounded_products_fit(acc, products, shift)) return false;
  const float* scaled = scaled_operand(t, shift);
#if defined(__AVX512F__)
  if (rounds)
    return run_certified_rule<S, RoundedProduct>(t, acc, certificate, scaled, shift, exact);
#endif
  return run_certified_rule<S, ExactProduct>(t, acc, certificate, scaled, shift, exact);
}

}  // namespace
}  // namespace lpk
