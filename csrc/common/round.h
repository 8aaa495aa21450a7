// round_to: the one definition of rounding to a format, for every mode, on host, vectors of doubles
// and device.
//
// x is an exact double, or a longer sum rounded to odd in double: both give the bits of the exact
// value, because formats have at most 24 significant bits and a draw at most 24 more (32 where x
// itself is exact). Works on magnitudes: with q the quantum of x's binade, |x| = (n + f) q, the
// result is n q or (n + 1) q.
//
// Needs separate multiplies and adds where it says (x + magic) - magic; contracting them is
// harmless (the product before it is a power of two times a constant), re-associating them is not:
// never build with fast-math.
#pragma once

#include "lanes.h"

namespace lpk {

// f >= stochastic_threshold(draw, R)  <=>  floor(f 2^(R+1)) + 2 draw + 1 >= 2^(R+1). Exact in
// double for R <= 32.
template <class D>
LPK_HD D stochastic_threshold(D draw, int random_bits) {
  const double scale = power_of_two(-random_bits - 1);
  return 1.0 - (draw + draw + 1.0) * scale;
}

// Rounds a magnitude to n or n + 1 quanta. `odd` is the parity of n's code, `negative` the sign of
// the value.
template <class D, class Mask>
LPK_HD D round_fraction(D floor_value, D fraction, D quantum, Mask odd, Mask negative,
                        Rounding mode, D threshold) {
  const D next = floor_value + quantum;
  switch (mode) {
    case Rounding::kNearestEven:
      return (fraction > 0.5) | ((fraction == 0.5) & odd) ? next : floor_value;
    case Rounding::kNearestAway:
      return fraction >= 0.5 ? next : floor_value;
    case Rounding::kTowardZero:
      return floor_value;
    case Rounding::kTowardPositive:
      return ((fraction > 0.0) & !negative) ? next : floor_value;
    case Rounding::kTowardNegative:
      return ((fraction > 0.0) & negative) ? next : floor_value;
    case Rounding::kToOdd:
      return ((fraction > 0.0) & !odd) ? next : floor_value;
    case Rounding::kStochastic:
      return fraction >= threshold ? next : floor_value;
  }
  return floor_value;
}

// What becomes of a magnitude beyond max: `infinite` marks infinite inputs, which no direction
// stops at max.
template <class D, class Mask>
LPK_HD D overflowed(const Format& f, Rounding mode, Mask negative, Mask infinite) {
  using L = Lanes<D>;
  const D max = L::all(f.max);
  const D beyond = L::all(f.beyond);
  switch (mode) {
    case Rounding::kTowardZero:
    case Rounding::kToOdd:
      return infinite ? beyond : max;
    case Rounding::kTowardPositive:
      return (negative & !infinite) ? max : beyond;
    case Rounding::kTowardNegative:
      return (negative | infinite) ? beyond : max;
    default:
      return beyond;
  }
}

// x as the rules below can scale it without overflow or underflow. Only float64 inputs need this.
// Magnitudes outside 2^-400 .. 2^300 become the nearest end, which rounds alike: formats end at
// 2^128, quanta begin at 2^-149, and every double above 2^300 is a multiple of any modulus of wrap,
// as 2^300 is, and 2^300 divided by the largest scale of a block, 2^127, is still beyond every
// format.
LPK_HD double moderated(double x) {
  const double a = fabs(x);
  if (a > 0x1p300 && a < HUGE_VAL) return copysign(0x1p300, x);
  if (a < 0x1p-400 && a > 0) return copysign(0x1p-400, x);
  return x;
}

// A value of a format with one zero, from one that is rounded with its sign: zero is +0, and
// without a sign what is still negative becomes 0 or NaN.
template <class D>
LPK_HD D with_one_zero(D r, const Format& f) {
  if (f.is_unsigned) r = r < 0.0 ? Lanes<D>::all(f.overflow == Overflow::kSaturate ? 0.0 : NAN) : r;
  return r + 0.0;
}

// always_overflows: directed modes do not stop at max either.
template <class D>
LPK_HD D round_to_float(D x, const Format& f, Rounding mode, D threshold,
                        bool always_overflows = false) {
  using L = Lanes<D>;
  const auto sign = L::bits(x) & kSignBit;
  const auto negative = sign != 0;
  const D a = magnitude<D>(x);
  const auto infinite = a == HUGE_VAL;

  // The binade of x, never below that of min_normal; its quantum; exact reciprocals of powers of
  // two by their exponents.
  const D binade = L::max(L::value(L::bits(a) & kExponentBits), L::all(f.min_normal));
  D quantum = binade * f.unit;
  if (!f.subnormals) quantum = a < f.min_normal ? binade : quantum;
  const D inverse = L::value((int64_t{2046} << 52) - L::bits(quantum));

  const D magic = quantum * 0x1p52;
  D below = (a + magic) - magic;
  below = below > a ? below - quantum : below;
  const D fraction = (a - below) * inverse;
  const D n = below * inverse;

  // Parity of the code: the mantissa's last bit, or with man_bits = 0 the exponent code's.
  auto odd = (L::bits(n + 0x1p52) & 1) != 0;
  if (f.man_bits == 0) {
    const auto code = (L::bits(binade) >> 52) - (1023 + f.emin - 1);
    odd = (a >= f.min_normal) & ((code & 1) != 0);
  }

  D r = round_fraction<D>(below, fraction, quantum, odd, negative, mode, threshold);
  const Rounding beyond = always_overflows ? Rounding::kNearestEven : mode;
  r = ((r > f.max) | infinite) ? overflowed<D>(f, beyond, negative, infinite) : r;
  // NaN: a NaN's own exponent bits are those of inf, so r is NaN by now.
  r = L::value(L::bits(r) | sign);
  return f.one_zero ? with_one_zero<D>(r, f) : r;
}

// nearest_even for man_bits >= 1 in a quarter of the operations; the same bits as round_to_float,
// but for the zeros of formats with one. Only of formats with a sign.
template <class D>
LPK_HD D round_to_float_nearest_even(D x, const Format& f) {
  using L = Lanes<D>;
  const auto sign = L::bits(x) & kSignBit;
  const D a = magnitude<D>(x);
  const D binade = L::max(L::value(L::bits(x) & kExponentBits), L::all(f.min_normal));
  D magic = binade * (f.unit * 0x1.8p52);
  if (!f.subnormals) magic = a < f.min_normal ? L::all(f.min_normal * 0x1.8p52) : magic;
  D r = (x + magic) - magic;
  r = a >= f.overflow_from ? L::all(f.beyond) : r;
  return L::value(L::bits(r) | sign);
}

// n modulo 2^word_bits for an integer n of any size: scaling by a power of two, floor and the
// difference are exact.
template <class D>
LPK_HD D wrap_quanta(D n, const Format& f) {
  const double inverse = 1.0 / f.modulus;
  D wrapped = n - Lanes<D>::floor(n * inverse) * f.modulus;
  if (f.lowest < 0) wrapped = wrapped >= f.modulus / 2 ? wrapped - f.modulus : wrapped;
  return wrapped;
}

template <class D>
LPK_HD D round_to_fixed(D x, const Format& f, Rounding mode, D threshold) {
  using L = Lanes<D>;
  const auto negative = x < 0.0;
  const D a = magnitude<D>(x);
  const D quantum = L::all(f.quantum);
  const double inverse = 1.0 / f.quantum;
  const double magic = f.quantum * 0x1p52;

  // From 2^52 quanta on every double is a multiple of the quantum.
  D below = (a + magic) - magic;
  below = below > a ? below - quantum : below;
  below = a >= f.quantum * 0x1p52 ? a : below;
  const D fraction = (a - below) * inverse;
  const auto odd = (L::bits(below * inverse + 0x1p52) & 1) != 0;
  const D r = round_fraction<D>(below, fraction, quantum, odd, negative, mode, threshold);
  D v = negative ? -r : r;

  if (f.overflow == Overflow::kWrap) {
    v = wrap_quanta<D>(v * inverse, f) * f.quantum;
  } else {
    v = v > f.max ? L::all(f.max) : v;
    v = v < f.lowest ? L::all(f.lowest) : v;
  }
  return v + 0.0;
}

#if !defined(__CUDA_ARCH__)
// A call for each vector: the rule of a table is a search (table.h).
template <class D>
LPK_HD D round_to_table(D x, const Format& f, Rounding mode, D threshold) {
  constexpr int kWidth = sizeof(D) / sizeof(double);
  double lanes[kWidth], thresholds[kWidth];
  std::memcpy(lanes, &x, sizeof x);
  std::memcpy(thresholds, &threshold, sizeof x);
  round_to_table(*f.table, mode, lanes, thresholds, lanes, kWidth);
  std::memcpy(&x, lanes, sizeof x);
  return x;
}
#endif

template <class D>
LPK_HD D round_to(D x, const Format& f, Rounding mode, D threshold) {
#if !defined(__CUDA_ARCH__)  // CUDA is given no tables.
  if (f.kind == Kind::kTable) return round_to_table<D>(x, f, mode, threshold);
#endif
  if (f.kind == Kind::kFixed) return round_to_fixed<D>(x, f, mode, threshold);
  return round_to_float<D>(x, f, mode, threshold);
}

}  // namespace lpk
