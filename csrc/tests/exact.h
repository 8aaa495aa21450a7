// The rounding contract in integers: sums and roundings of exact numbers, slow and obvious.
//
// This shares with csrc/common only the meaning of a format's integers, so that both cannot be
// wrong in the same way.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "tables.h"

namespace lpk_test {

// A magnitude in fixed point: bit i counts 2^(i + kLowest). It holds every product of two float32,
// every sum of two such products, and the doubles from 2^-400 to 2^200 with all their bits.
class Magnitude {
 public:
  static constexpr int kLimbs = 12;
  static constexpr int kLowest = -480;

  Magnitude() = default;
  explicit Magnitude(double a) {
    int exponent;
    const double mantissa = std::frexp(a, &exponent);
    const auto digits = static_cast<uint64_t>(std::ldexp(mantissa, 53));
    const int at = exponent - 53 - kLowest;
    limb_[at / 64] |= digits << (at % 64);
    if (at % 64 != 0) limb_[at / 64 + 1] |= digits >> (64 - at % 64);
  }

  bool is_zero() const { return highest() < 0; }

  int highest() const {
    for (int i = kLimbs - 1; i >= 0; --i) {
      if (limb_[i] != 0) return 64 * i + 63 - __builtin_clzll(limb_[i]);
    }
    return -1;
  }

  // 64 bits from bit `from` on.
  uint64_t word(int from) const {
    const int i = from / 64;
    const int shift = from % 64;
    const uint64_t low = limb_[i] >> shift;
    return shift == 0 || i + 1 == kLimbs ? low : low | limb_[i + 1] << (64 - shift);
  }

  bool any_below(int bit) const {
    for (int i = 0; i < bit / 64; ++i) {
      if (limb_[i] != 0) return true;
    }
    return bit % 64 != 0 && (limb_[bit / 64] & ((uint64_t{1} << bit % 64) - 1)) != 0;
  }

  bool operator<(const Magnitude& other) const {
    for (int i = kLimbs - 1; i >= 0; --i) {
      if (limb_[i] != other.limb_[i]) return limb_[i] < other.limb_[i];
    }
    return false;
  }

  Magnitude operator+(const Magnitude& other) const { return combined(other, false); }
  // The larger of the two less the smaller.
  Magnitude operator-(const Magnitude& other) const { return combined(other, true); }

 private:
  Magnitude combined(const Magnitude& other, bool subtract) const {
    Magnitude result;
    uint64_t carry = subtract ? 1 : 0;
    for (int i = 0; i < kLimbs; ++i) {
      const uint64_t addend = subtract ? ~other.limb_[i] : other.limb_[i];
      const unsigned __int128 sum = static_cast<unsigned __int128>(limb_[i]) + addend + carry;
      result.limb_[i] = static_cast<uint64_t>(sum);
      carry = static_cast<uint64_t>(sum >> 64);
    }
    return result;
  }

  std::array<uint64_t, kLimbs> limb_{};
};

struct Exact {
  bool negative;
  Magnitude magnitude;
};

inline Exact exact(double x) {
  return {std::signbit(x), x == 0 ? Magnitude{} : Magnitude{std::fabs(x)}};
}

struct Draw {
  uint32_t value = 0;
  int bits = 32;
};

// Whether a magnitude moves away from its lower neighbour. `odd` says whether this neighbour's code
// is odd. The neighbours are 2^place apart in bits.
inline bool moves_away(Rounding rounding, const Magnitude& a, int place, bool odd, bool negative,
                       Draw draw) {
  const bool inexact = a.any_below(place);
  const bool half = (a.word(place - 1) & 1) != 0;
  const bool more = a.any_below(place - 1);
  switch (rounding) {
    case Rounding::kNearestEven:
      return half && (more || odd);
    case Rounding::kNearestAway:
      return half;
    case Rounding::kTowardZero:
      return false;
    case Rounding::kTowardPositive:
      return inexact && !negative;
    case Rounding::kTowardNegative:
      return inexact && negative;
    case Rounding::kToOdd:
      return inexact && !odd;
    case Rounding::kStochastic: {
      const uint64_t whole = uint64_t{1} << (draw.bits + 1);
      const uint64_t fraction = a.word(place - draw.bits - 1) & (whole - 1);
      return fraction + 2 * uint64_t{draw.value} + 1 >= whole;
    }
  }
  return false;
}

inline double largest_float(const FormatInts& f) {
  const auto specials = static_cast<Specials>(f[4]);
  const int man_bits = static_cast<int>(f[2]);
  int64_t code = (int64_t{1} << (f[1] + man_bits)) - 1;
  // Infinity has the last code, and without a sign NaN the one behind.
  if (specials == Specials::kP3109) --code;
  if (f[7] != 0) --code;
  int64_t exponent_code = code >> man_bits;
  int64_t mantissa = code & ((int64_t{1} << man_bits) - 1);
  if (specials == Specials::kIeee || (specials == Specials::kFn && man_bits == 0)) {
    --exponent_code;
  } else if (specials == Specials::kFn) {
    --mantissa;
  }
  const int64_t significand = (int64_t{1} << man_bits) + mantissa;
  return std::ldexp(static_cast<double>(significand),
                    static_cast<int>(exponent_code - f[3]) - man_bits);
}

inline double beyond_largest(const FormatInts& f) {
  switch (static_cast<Overflow>(f[6])) {
    case Overflow::kInfinity:
      return HUGE_VAL;
    case Overflow::kNan:
      return std::nan("");
    default:
      return largest_float(f);
  }
}

inline double exact_with_signs(const Exact& x, const FormatInts& f, Rounding rounding, Draw draw) {
  const double sign = x.negative ? -1.0 : 1.0;
  if (x.magnitude.is_zero()) return sign * 0.0;
  const int man_bits = static_cast<int>(f[2]);
  const int emin = 1 - static_cast<int>(f[3]);
  const int e = x.magnitude.highest() + Magnitude::kLowest;
  const bool tiny = e < emin;
  // The exponent of the last place: without subnormals, 0 and min_normal are neighbours.
  const int last = tiny ? (f[5] != 0 ? emin - man_bits : emin) : e - man_bits;
  const int place = last - Magnitude::kLowest;
  const uint64_t n = x.magnitude.word(place);
  const uint64_t hidden = uint64_t{1} << man_bits;
  const uint64_t code = tiny ? n : (static_cast<uint64_t>(e - emin + 1) << man_bits) + (n - hidden);
  const bool away = moves_away(rounding, x.magnitude, place, (code & 1) != 0, x.negative, draw);
  const double result = std::ldexp(static_cast<double>(n + away), last);
  const double max = largest_float(f);
  if (result <= max) return sign * result;
  const bool stops_at_max = rounding == Rounding::kTowardZero || rounding == Rounding::kToOdd ||
                            (rounding == Rounding::kTowardPositive && x.negative) ||
                            (rounding == Rounding::kTowardNegative && !x.negative);
  return sign * (stops_at_max ? max : beyond_largest(f));
}

// fnuz and P3109 have no -0, and may have no negative values.
inline bool has_one_zero(const FormatInts& f) { return f[0] == 0 && f[4] >= 3; }

inline double in_its_range(double x, const FormatInts& f) {
  if (!has_one_zero(f)) return x;
  if (f[7] != 0 && x < 0) return f[6] == 1 ? 0.0 : std::nan("");
  return x == 0 ? 0.0 : x;
}

inline double exact_to_float(const Exact& x, const FormatInts& f, Rounding rounding, Draw draw) {
  return in_its_range(exact_with_signs(x, f, rounding, draw), f);
}

inline double exact_to_fixed(const Exact& x, const FormatInts& f, Rounding rounding, Draw draw) {
  if (x.magnitude.is_zero()) return 0.0;
  const int word_bits = static_cast<int>(f[1]);
  const int frac_bits = static_cast<int>(f[2]);
  const bool is_signed = f[3] != 0;
  const int place = -frac_bits - Magnitude::kLowest;
  const uint64_t floor = x.magnitude.word(place);
  const bool away = moves_away(rounding, x.magnitude, place, (floor & 1) != 0, x.negative, draw);
  const int64_t count = int64_t{1} << word_bits;
  const int64_t largest = is_signed ? count / 2 - 1 : count - 1;
  const int64_t lowest = is_signed ? -count / 2 : 0;
  int64_t n;
  if (f[4] != 0) {
    const uint64_t code = x.negative ? -(floor + away) : floor + away;
    n = static_cast<int64_t>(code & static_cast<uint64_t>(count - 1));
    if (n > largest) n -= count;
  } else if (x.magnitude.highest() - place >= 40) {
    n = x.negative ? lowest : largest;
  } else {
    const int64_t rounded = static_cast<int64_t>(floor + away);
    n = std::min(std::max(x.negative ? -rounded : rounded, lowest), largest);
  }
  return std::ldexp(static_cast<double>(n), -frac_bits);
}

// The sign of x - y. Both have a magnitude of 2^-400 .. 2^200, or are zero.
inline int compared(const Exact& x, double y) {
  const Magnitude other = exact(y).magnitude;
  const int size = (other < x.magnitude) - (x.magnitude < other);
  if (y == 0 || (y < 0) == x.negative) return x.negative ? -size : size;
  return x.negative ? -1 : 1;
}

// The odd neighbour of x among doubles, if x is none.
inline double odd_double(const Exact& x) {
  if (x.magnitude.is_zero()) return 0.0;
  const int place = x.magnitude.highest() - 52;
  const uint64_t digits = x.magnitude.word(place) | uint64_t{x.magnitude.any_below(place)};
  return (x.negative ? -1.0 : 1.0) *
         std::ldexp(static_cast<double>(digits), place + Magnitude::kLowest);
}

inline double exact_to_table(const Exact& x, const TestTable& t, Rounding rounding, Draw draw) {
  if (rounding == Rounding::kStochastic)
    return drawn_to_table(t, odd_double(x), draw.value, draw.bits);
  return rounded_to_table(t, rounding, [&](double v) { return compared(x, v); });
}

inline double exact_infinity(bool negative, const FormatInts& f) {
  if (f[0] == 4 && table_of(f).infinity_is_nan) return std::nan("");
  if (f[0] == 4) return negative ? table_of(f).values.front() : table_of(f).values.back();
  if (f[0] == 0) return in_its_range((negative ? -1.0 : 1.0) * beyond_largest(f), f);
  if (f[4] != 0) return std::nan("");
  return exact_to_fixed({negative, Magnitude{0x1p200}}, f, Rounding::kTowardZero, {});
}

inline double exact_round(const Exact& x, const FormatInts& f, Rounding rounding, Draw draw) {
  if (f[0] == 4) return exact_to_table(x, table_of(f), rounding, draw);
  return f[0] == 0 ? exact_to_float(x, f, rounding, draw) : exact_to_fixed(x, f, rounding, draw);
}

// x has a magnitude of 2^-400 .. 2^200, or is zero, infinite or NaN.
inline double exact_round(double x, const FormatInts& f, Rounding rounding, Draw draw = {}) {
  if (x != x) return x;
  if (std::isinf(x)) return exact_infinity(x < 0, f);
  return exact_round(exact(x), f, rounding, draw);
}

// round(a + b), one rounding of the exact sum.
inline double exact_add(double a, double b, const FormatInts& f, Rounding rounding,
                        Draw draw = {}) {
  if (a != a || b != b) return std::nan("");
  if (std::isinf(a) || std::isinf(b)) {
    if (std::isinf(a) && std::isinf(b) && std::signbit(a) != std::signbit(b)) return std::nan("");
    return exact_infinity(std::isinf(a) ? a < 0 : b < 0, f);
  }
  const Exact x = exact(a);
  const Exact y = exact(b);
  if (x.negative == y.negative) {
    return exact_round({x.negative, x.magnitude + y.magnitude}, f, rounding, draw);
  }
  if (x.magnitude < y.magnitude) {
    return exact_round({y.negative, y.magnitude - x.magnitude}, f, rounding, draw);
  }
  if (y.magnitude < x.magnitude) {
    return exact_round({x.negative, x.magnitude - y.magnitude}, f, rounding, draw);
  }
  const double zero = rounding == Rounding::kTowardNegative ? -0.0 : 0.0;
  return exact_round(zero, f, rounding, draw);
}

}  // namespace lpk_test
