// A number format as the kernels see it: the eight integers of lpkernels/formats and the constants
// that rounding needs.
//
// FloatFormat and FixedFormat of lpkernels/formats are the same in Python. Everything derived is
// exact in double: formats are limited to values that float32 holds. Host and device.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "integers.h"
#include "table.h"

// Always inlined: csrc/cpu compiles these headers once per instruction set, and a copy out of line
// made for AVX-512 must never be the one that the linker keeps for everybody.
#if defined(__CUDACC__)
#define LPK_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define LPK_HD __attribute__((always_inline)) inline
#else
#define LPK_HD inline
#endif

// GCC makes no copies of the function for callers with constant arguments; Clang never does.
#if defined(__GNUC__) && !defined(__clang__)
#define LPK_NOCLONE __attribute__((noclone))
#else
#define LPK_NOCLONE
#endif

namespace lpk {

enum class Kind : int32_t { kFloat = 0, kFixed = 1, kAffine = 2, kBlock = 3, kTable = 4 };
enum class Specials : int32_t { kIeee = 0, kFn = 1, kNone = 2, kFnuz = 3, kP3109 = 4 };
enum class Overflow : int32_t { kInfinity = 0, kSaturate = 1, kNan = 2, kWrap = 3 };

enum class Rounding : int32_t {
  kNearestEven = 0,
  kNearestAway = 1,
  kTowardZero = 2,
  kTowardPositive = 3,
  kTowardNegative = 4,
  kToOdd = 5,
  kStochastic = 6,
};

constexpr int kFormatInts = 8;

// Of the integers that describe a format.
LPK_HD Kind kind_of(const int64_t* ints) { return static_cast<Kind>(ints[0]); }

struct Format {
  Kind kind;
  int32_t exp_bits;
  int32_t man_bits;
  int32_t bias;
  Specials specials;
  bool subnormals;
  Overflow overflow;
  bool is_unsigned;

  // Derived, float formats.
  bool one_zero;  // +0: fnuz and P3109, which have NaN in the code of -0
  int32_t emin;
  double min_normal;     // 2^emin
  double unit;           // 2^-man_bits: a binade's width times this is its quantum
  double max;            // largest finite value
  double overflow_from;  // smallest magnitude that nearest_even sends beyond max
  double beyond;         // what a magnitude beyond max becomes

  // Derived, fixed formats.
  double quantum;  // value of the last place
  double lowest;   // most negative value, of tables too
  double modulus;  // 2^word_bits, in quanta

  const Table* table;  // null: the format is no table
};

#if defined(__CUDA_ARCH__)
LPK_HD int64_t bits_of_double(double x) { return __double_as_longlong(x); }
LPK_HD double double_of_bits(int64_t bits) { return __longlong_as_double(bits); }
LPK_HD uint32_t bits_of_float(float x) { return __float_as_uint(x); }
LPK_HD float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
#else
template <class To, class From>
LPK_HD To same_bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
LPK_HD int64_t bits_of_double(double x) { return same_bits<int64_t>(x); }
LPK_HD double double_of_bits(int64_t bits) { return same_bits<double>(bits); }
LPK_HD uint32_t bits_of_float(float x) { return same_bits<uint32_t>(x); }
LPK_HD float float_of_bits(uint32_t bits) { return same_bits<float>(bits); }
#endif

// 2^exponent for the exponents of normal doubles; a call of ldexp would cost more than a rounding.
LPK_HD double power_of_two(int exponent) {
  return double_of_bits(static_cast<int64_t>(exponent + 1023) << 52);
}

// floor(log2 x), x a positive normal double: every positive float32 is one.
LPK_HD int log2_of(double x) { return static_cast<int>(bits_of_double(x) >> 52 & 0x7ff) - 1023; }

LPK_HD Format float_format(const int64_t* ints) {
  Format f{};
  f.kind = Kind::kFloat;
  f.exp_bits = static_cast<int32_t>(ints[InFloat::kExpBits]);
  f.man_bits = static_cast<int32_t>(ints[InFloat::kManBits]);
  f.bias = static_cast<int32_t>(ints[InFloat::kBias]);
  f.specials = static_cast<Specials>(ints[InFloat::kSpecials]);
  f.subnormals = ints[InFloat::kSubnormals] != 0;
  f.overflow = static_cast<Overflow>(ints[InFloat::kOverflow]);
  f.is_unsigned = ints[InFloat::kUnsigned] != 0;
  f.one_zero = f.specials == Specials::kFnuz || f.specials == Specials::kP3109;

  f.emin = 1 - f.bias;
  f.min_normal = power_of_two(f.emin);
  f.unit = power_of_two(-f.man_bits);
  f.quantum = f.min_normal * f.unit;

  // The last codes of magnitudes that are no numbers: "ieee" gives the top exponent to inf and NaN,
  // "fn" and formats without a sign the last code to NaN, "p3109" the last or the one before to
  // inf.
  const int64_t binade_codes = int64_t{1} << f.man_bits;
  const int64_t lost = f.specials == Specials::kIeee ? binade_codes
                       : f.specials == Specials::kFn || f.specials == Specials::kP3109 ? 1
                                                                                       : 0;
  const int64_t max_code =
      (int64_t{1} << (f.exp_bits + f.man_bits)) - 1 - lost - (f.is_unsigned ? 1 : 0);
  const int32_t emax = static_cast<int32_t>(max_code >> f.man_bits) - f.bias;
  const double top_quantum = power_of_two(emax) * f.unit;
  f.max = top_quantum * static_cast<double>(binade_codes + (max_code & (binade_codes - 1)));

  // The tie beyond max goes up when max's code is odd. Where the tie stays, this lies one step
  // above it.
  const double tie = f.max + top_quantum / 2;
  const bool max_code_odd = (max_code & 1) != 0;
  f.beyond = f.overflow == Overflow::kInfinity ? HUGE_VAL
             : f.overflow == Overflow::kNan    ? NAN
                                               : f.max;
  f.overflow_from = max_code_odd ? tie : nextafter(tie, 2 * tie);
  return f;
}

LPK_HD Format float32_format() {
  const int64_t ints[kFormatInts] = {static_cast<int64_t>(Kind::kFloat), 8, 23, 127, 0, 1, 0, 0};
  return float_format(ints);
}

LPK_HD Format fixed_format(const int64_t* ints) {
  Format f{};
  f.kind = Kind::kFixed;
  const int word_bits = static_cast<int>(ints[InFixed::kWordBits]);
  const int frac_bits = static_cast<int>(ints[InFixed::kFracBits]);
  const bool is_signed = ints[InFixed::kSigned] != 0;
  f.overflow = ints[InFixed::kOverflow] != 0 ? Overflow::kWrap : Overflow::kSaturate;
  f.quantum = power_of_two(-frac_bits);
  f.modulus = power_of_two(word_bits);
  f.max = (power_of_two(word_bits - (is_signed ? 1 : 0)) - 1) * f.quantum;
  f.lowest = is_signed ? -power_of_two(word_bits - 1) * f.quantum : 0.0;
  return f;
}

LPK_HD bool is_float32(const Format& f) {
  return f.kind == Kind::kFloat && f.subnormals && f.exp_bits == 8 && f.emin == -126 &&
         f.man_bits == 23 && f.specials == Specials::kIeee && f.overflow == Overflow::kInfinity;
}

inline Format table_format(const int64_t* ints) {
  Format f{};
  f.kind = Kind::kTable;
  f.overflow = Overflow::kSaturate;
  f.table = &table_of(ints[InTable::kHandle]);
  f.max = table_max(*f.table);
  f.lowest = table_min(*f.table);
  return f;
}

// A FloatFormat, FixedFormat or TableFormat; Affine and Block have entry points of their own.
LPK_HD Format number_format(const int64_t* ints) {
#if !defined(__CUDA_ARCH__)  // CUDA is given no tables.
  if (kind_of(ints) == Kind::kTable) return table_format(ints);
#endif
  return kind_of(ints) == Kind::kFixed ? fixed_format(ints) : float_format(ints);
}

}  // namespace lpk
