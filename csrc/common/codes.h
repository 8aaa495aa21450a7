// Codes of single values: sign | exponent | mantissa of float formats, two's complement of fixed
// ones, their own of tables. docs/contract.md, "Packed codes".
#pragma once

#include "blocks.h"

namespace lpk {

// Stands for a value that has no code. As a 32-bit code it would be a NaN, but encode gives NaN
// another code.
constexpr uint32_t kNoCode = 0xffffffffu;

// Codes of one format of numbers.
class Codec {
 public:
  Codec() = default;
  explicit Codec(const int64_t* ints) : f_(number_format(ints)) {
    fixed_ = f_.kind == Kind::kFixed;
    if (f_.kind == Kind::kTable) {
      bits_ = table_bits(*f_.table);
      return;
    }
    bits_ = fixed_ ? static_cast<int>(ints[InFixed::kWordBits])
                   : (f_.is_unsigned ? 0 : 1) + f_.exp_bits + f_.man_bits;
    inverse_quantum_ = 1.0 / f_.quantum;
    if (fixed_) return;
    top_ = (1u << f_.exp_bits) - 1;
    mantissa_mask_ = (1u << f_.man_bits) - 1;
    const uint32_t last = top_ << f_.man_bits | mantissa_mask_;
    if (f_.one_zero) nan_ = f_.is_unsigned ? last : last + 1;
    if (f_.specials == Specials::kP3109) infinity_ = last - (f_.is_unsigned ? 1 : 0);
    if (f_.specials == Specials::kIeee) infinity_ = top_ << f_.man_bits;
  }

  LPK_HD int bits() const { return bits_; }

  // The code of a value of the format, kNoCode if there is none. x is a float32, or one divided by
  // the scale of a block: a normal double or zero.
  LPK_HD uint32_t encode(double x) const {
    if (f_.kind == Kind::kTable) return table_code(*f_.table, x);
    return fixed_ ? encode_fixed(x) : encode_float(x);
  }
  // Every code of a NaN gives NaN.
  LPK_HD double decode(uint32_t code) const {
    if (f_.kind == Kind::kTable) return table_value(*f_.table, code);
    return fixed_ ? decode_fixed(code) : decode_float(code);
  }

 private:
  LPK_HD uint32_t encode_fixed(double x) const {
    if (!(x >= f_.lowest && x <= f_.max)) return kNoCode;
    const double n = x * inverse_quantum_;
    if (n != Lanes<double>::floor(n)) return kNoCode;
    return static_cast<uint32_t>(static_cast<int64_t>(n)) & (0xffffffffu >> (32 - bits_));
  }

  LPK_HD double decode_fixed(uint32_t code) const {
    double n = code;
    if (f_.lowest < 0 && n >= f_.modulus / 2) n -= f_.modulus;
    return n * f_.quantum;
  }

  LPK_HD uint32_t encode_float(double x) const {
    const uint32_t sign = bits_of_double(x) < 0 ? 1u << (f_.exp_bits + f_.man_bits) : 0;
    const double a = magnitude<double>(x);
    if (a != a) return encode_nan();
    if (a == 0) return f_.one_zero ? 0 : sign;
    if (sign != 0 && f_.is_unsigned) return kNoCode;
    if (a == HUGE_VAL) return infinity_ == kNoCode ? kNoCode : sign | infinity_;
    if (a > f_.max) return kNoCode;
    const int own = log2_of(a);
    const int e = own > f_.emin ? own : f_.emin;
    const double n = a * power_of_two(f_.man_bits - e);
    if (n != Lanes<double>::floor(n)) return kNoCode;
    const uint32_t significand = static_cast<uint32_t>(n);
    const uint32_t hidden = 1u << f_.man_bits;
    if (significand < hidden) return f_.subnormals ? sign | significand : kNoCode;
    return sign | static_cast<uint32_t>(e - f_.emin + 1) << f_.man_bits | (significand - hidden);
  }

  LPK_HD uint32_t encode_nan() const {
    if (f_.specials == Specials::kFn) return top_ << f_.man_bits | mantissa_mask_;
    if (f_.specials == Specials::kIeee && f_.man_bits > 0)
      return top_ << f_.man_bits | 1u << (f_.man_bits - 1);
    return nan_;
  }

  LPK_HD double decode_float(uint32_t code) const {
    const uint32_t exponent = code >> f_.man_bits & top_;
    const uint32_t mantissa = code & mantissa_mask_;
    const bool negative = (code >> (f_.exp_bits + f_.man_bits) & 1u) != 0;
    if (f_.one_zero) {
      if (code == nan_) return NAN;
      const uint32_t magnitude = exponent << f_.man_bits | mantissa;
      if (magnitude == infinity_) return negative ? -HUGE_VAL : HUGE_VAL;
    }
    if (f_.specials == Specials::kIeee && exponent == top_)
      return mantissa != 0 ? static_cast<double>(NAN) : negative ? -HUGE_VAL : HUGE_VAL;
    if (f_.specials == Specials::kFn && exponent == top_ && mantissa == mantissa_mask_) return NAN;
    const bool normal = exponent > 0;
    const double n = normal ? mantissa + (1u << f_.man_bits) : mantissa;
    const int e = normal ? static_cast<int>(exponent) + f_.emin - 1 : f_.emin;
    // Without subnormals the codes of exponent 0 are all zeros.
    const double a = !normal && !f_.subnormals ? 0.0 : n * power_of_two(e - f_.man_bits);
    const double x = negative ? -a : a;
    return f_.one_zero ? x + 0.0 : x;
  }

  Format f_;
  bool fixed_;
  int bits_;
  double inverse_quantum_;
  uint32_t top_ = 0;
  uint32_t mantissa_mask_ = 0;
  uint32_t infinity_ = kNoCode;
  uint32_t nan_ = kNoCode;  // of a format with one zero
};

}  // namespace lpk
