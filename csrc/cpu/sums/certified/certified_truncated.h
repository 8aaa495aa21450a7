// Sums in the modes that compose with a rounding of the processor in the same direction, in
// float32 lanes, for operands of any width: one multiply-add and operations on the bits. AVX-512's
// instructions take that rounding; for AVX2 the processor rounds so while a group of sums is made.
//
//   mode                      the multiply-add      then on the bits below the last place
//   toward_zero               toward zero           dropped
//   toward_positive/negative  that way              all ones added outward, dropped
//   nearest_away              toward zero           half a place added, dropped
//   stochastic                toward zero           2 draw + 1 added, dropped
// and with AVX2
//   nearest_even              made odd              half a place less one and the last bit kept
//                                                   added, dropped; 23 bits: to nearest, no more
// The first rounding keeps 24 bits and every multiple of 2^-149. The second goes on in the same
// direction, to a coarser grid, and all points that it looks at (ends, halves, draws) are on the
// first grid: so both are one rounding. Scaled by 2^(-126 - emin) the subnormals of the format lie
// where float32 has its own, and the same bits are the ones to drop there.
#pragma once

#include "certified_kernel.h"

namespace lpk {
namespace {

template <class S, Rounding kRounding>
struct CarriedRule : TruncationRule<S, hardware_mode(kRounding)> {
  using Base = TruncationRule<S, hardware_mode(kRounding)>;
  using F = typename S::F;
  typename S::I carry;

  explicit CarriedRule(const Format& f)
      : Base(f),
        carry(S::all_words(kRounding == Rounding::kNearestAway ? 1 << (22 - f.man_bits)
                                                               : (1 << (23 - f.man_bits)) - 1)) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws& draws) const {
    if constexpr (kRounding == Rounding::kNearestAway) {
      return Base::round(S::sum_of_words(S::words(s), carry), draws);
    } else {
      constexpr bool kNegative = kRounding == Rounding::kTowardNegative;
      return Base::round((F)S::template carried<kNegative>(S::words(s), carry), draws);
    }
  }
};

// nearest_even of sums made odd, on the bits, as the processor rounds down meanwhile.
template <class S>
struct OddCarriedRule : RuleOf<S, true, false, true>, PlainSum<S>, EvenBits<S> {
  using F = typename S::F;
  using Direction = typename S::template Direction<kDown>;

  explicit OddCarriedRule(const Format& f) : EvenBits<S>(f) {}
  LPK_HD F fma(F a, F b, F sum) const {
    return S::odd_one(S::fma(a, b, sum), S::fma_up(a, b, sum));
  }
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    return this->even(s);
  }
};

// The rule watched by the largest magnitude of its sums. Where sums may be -0 absent taps are
// passed over.
template <class S, class Rule>
struct GroundedRule : Rule {
  using F = typename S::F;
  static constexpr bool kKeepsZeros = true;
  F limit;
  bool may_keep_zeros;

  GroundedRule(const Format& f, double sum_limit, bool negative_zeros)
      : Rule(f), limit(S::all(sum_limit)), may_keep_zeros(negative_zeros) {}
  bool keeps_zeros() const { return may_keep_zeros; }
  LPK_HD static F joined(F a, F b) { return S::larger(a, b); }
  LPK_HD bool broken(F most) const { return S::reaches(most, limit); }
};

// The certificate of sums scaled so that the format's subnormals are float32's own.
struct GroundCertificate {
  bool valid;
  bool reached;  // sums may pass 2^bound, where the format overflows
  int bound;
  int factor_shift, other_shift;  // of the operands: together -126 - emin
};

inline GroundCertificate certify_ground(const CertifiedJob& job, const AddendRange& p) {
  constexpr GroundCertificate kNone{false, false, 0, 0, 0};
  const Accumulator& acc = job.acc;
  const Format& f = acc.fmt;
  const OperandRange state = state_range<true>(job.tile, acc);
  if (!p.plain || !state.plain || f.kind != Kind::kFloat || !f.subnormals) return kNone;
  // The places that the second rounding looks at are among the first's.
  const int looks = acc.rounding == Rounding::kStochastic    ? acc.random_bits + 1
                    : acc.rounding == Rounding::kNearestEven ? (f.man_bits < 23 ? 2 : 0)
                    : acc.rounding == Rounding::kNearestAway ? 1
                                                             : 0;
  if (f.man_bits < 1 || f.man_bits + looks > 23) return kNone;
  // The float tier needs one operation a product for float32 itself.
  if (Isa::kRoundsAsTold && is_float32(f) && acc.rounding == Rounding::kTowardZero) return kNone;
  const int shift = -126 - f.emin;
  const int bound = overflow_exponent(f);
  if (shift > 0 || shift < -126 || p.highest > bound) return kNone;
  // Scaled operands stay normal: subnormal ones take the processor a hundred cycles each.
  const auto room = [](const OperandRange& x) { return 126 + x.lowest + x.width - 1; };
  const int factor_shift = std::max(shift, -std::max(room(job.factor()), 0));
  const int other_shift = shift - factor_shift;
  if (-other_shift > std::max(room(job.other()), 0)) return kNone;
  // A sum of 2^bound overflows.
  const bool reached = highest_sum(f, acc.rounding, p, state, job.terms() + 1) > bound;
  return {true, reached, bound, factor_shift, other_shift};
}

// Whether few products, of a sample of them, are below the smallest normal number: sums of such
// products would be subnormal at every step.
inline bool mostly_normal(const Tile& t, const Format& f) {
  const int64_t a_count = t.a_floats(), b_count = t.lanes * t.depth;
  const int64_t samples = std::clamp<int64_t>(t.rows * b_count / 1024, 16, 128);
  int64_t small = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const double a = t.a[i * 7919 % a_count], b = t.b[i * 104729 % b_count];
    small += a * b != 0 && std::fabs(a * b) < f.min_normal;
  }
  return small <= samples / 32;
}

template <class S, class Rule>
bool run_truncated_rule(const CertifiedJob& job) {
  const Accumulator& acc = job.acc;
  const AddendRange products = product_range(job.a, job.b);
  // In this mode a zero sum of addends with opposite signs is -0.
  const bool negative = acc.rounding == Rounding::kTowardNegative;
  const Certificate c = certify<S>(job, products, job.factor());
  if (c.valid && !c.floor) {
    const int shift = 1 - c.bound;
    const Operands<S> scaled(job, shift);
    const CertifiedWork<S> work{job, scaled, shift, c.reached};
    return run_certified(work, GroundedRule<S, Rule>(acc.fmt, 2.0, negative));
  }
  const GroundCertificate g = certify_ground(job, products);
  if (!g.valid || !mostly_normal(job.tile, acc.fmt)) return false;
  const int shift = -126 - acc.fmt.emin;
  const Operands<S> scaled(job, g.factor_shift, g.other_shift);
  const CertifiedWork<S> work{job, scaled, shift, g.reached};
  return run_certified(work,
                       GroundedRule<S, Rule>(acc.fmt, std::ldexp(1.0, g.bound + shift), true));
}

// Float formats and exact products; false if there is no certificate.
template <class S>
bool run_truncated_tile(const CertifiedJob& job) {
  const Accumulator& acc = job.acc;
  if (!products_stay(acc, job.a, job.b)) return false;
  if constexpr (!Isa::kRoundsAsTold) {
    if (acc.rounding == Rounding::kNearestEven) {
      if (acc.fmt.man_bits == 23)
        return run_truncated_rule<S, TruncationRule<S, kNearestMode>>(job);
      if (one_digit_less(S::kPrecision, acc.fmt)) return false;
      return run_truncated_rule<S, OddCarriedRule<S>>(job);
    }
  }
  return for_mode(acc.rounding, [&](auto mode) {
    if constexpr (mode == Rounding::kNearestEven || mode == Rounding::kToOdd) {
      return false;
    } else if constexpr (mode == Rounding::kTowardZero) {
      return run_truncated_rule<S, TruncationRule<S>>(job);
    } else if constexpr (mode == Rounding::kStochastic) {
      return run_truncated_rule<S, StochasticRule<S>>(job);
    } else {
      return run_truncated_rule<S, CarriedRule<S, mode>>(job);
    }
  });
}

}  // namespace
}  // namespace lpk
