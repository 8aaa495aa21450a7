// Scales as TransformerEngine, torchao and DeepGEMM compute them: every line is one operation in
// float32, rounded to nearest even, in the order of the program. lpkernels/reference/programs.py is
// the definition.
#pragma once

#include <cfloat>

#include "blocks.h"

namespace lpk {

// The smaller and the larger of two numbers, NaN if x is.
inline float at_most(float x, float end) { return x > end ? end : x; }
inline float at_least(float x, float end) { return x < end ? end : x; }

// The largest number of a tensor or a line with codes in e2m1, divided by t.
inline float largest_number(const BlockFormat& b) { return static_cast<float>(6 * b.scale_target); }

// What a program computes of a whole tensor, or of a line: t, and TransformerEngine's scale of the
// scales.
struct ProgramTensor {
  float t = 1, encode = 1, decode = 1;

  ProgramTensor() = default;
  ProgramTensor(float amax, const BlockFormat& b) {
    if (!b.has_tensor_scale()) return;
    const float largest = largest_number(b);
    t = amax / largest;
    encode = at_most(largest / amax, FLT_MAX);
    if (amax == 0 || encode == 0) encode = 1;
    decode = 1 / encode;
  }
};

// The scale of a candidate of TransformerEngine before it is rounded to e4m3; `raise` is 1.5 of the
// one whose largest is mapped to 4, else 1. A tile that is not finite has no codes.
inline float candidate_scale(float a, const ProgramTensor& of, float raise) {
  const float b = a < HUGE_VALF ? a / 6 * of.encode : NAN;
  return at_most(b * raise, 448);
}
inline float candidate_factor(float s, const ProgramTensor& of) {
  return at_most(1 / (s * of.decode), FLT_MAX);
}

// The scale s of a tile, and the float32 by which its elements are multiplied.
struct ProgramScale {
  float s, factor;
};

class Program {
 public:
  Program(const BlockFormat& format, Rounding rounding)
      : b_(format),
        top_(static_cast<float>(format.element_max)),
        target_(static_cast<float>(format.target)),
        divides_(format.steps == Steps::kTorchao && format.is_integer &&
                 format.target <= format.element_max && rounding == Rounding::kStochastic) {}

  // Whether elements are divided by s, and are 0 where s is.
  bool divides() const { return divides_; }

  // a: the largest magnitude of the tile, which may be an infinity or NaN.
  ProgramScale scale(float a, const ProgramTensor& of) const {
    const bool narrow = b_.kind == ScaleKind::kFloat || b_.has_tensor_scale();
    switch (b_.steps) {
      case Steps::kTe:
        return narrow ? te_nvfp4(a, of) : b_.mx ? te_mx(a) : te(a);
      case Steps::kTorchao:
        if (b_.is_integer) return torchao_integers(a);
        return narrow ? torchao_nvfp4(a, of) : b_.mx ? torchao_mx(a) : torchao(a);
      default:
        return deepgemm(a);
    }
  }

 private:
  bool power_of_two_scale() const { return b_.kind == ScaleKind::kE8m0; }

  float e4m3(float x) const {
    return static_cast<float>(round_to_float_nearest_even<double>(x, b_.scale));
  }

  static float without_mantissa(float x) { return float_of_bits(bits_of_float(x) & 0xff800000u); }
  // The exponent field of a positive float, and one more where its mantissa is not 0.
  static int rounded_up(uint32_t bits) {
    return static_cast<int>(bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  }

  ProgramScale te_nvfp4(float a, const ProgramTensor& of) const {
    const float sixth = 1.0f / 6;
    const float s = e4m3(at_most(a * (of.encode * sixth), FLT_MAX));
    return {s, at_most(1 / (s * of.decode), FLT_MAX)};
  }

  ProgramScale te_mx(float a) const {
    if (a != a) return {NAN, NAN};
    const float quotient = a * (1 / top_);
    const uint32_t bits = bits_of_float(quotient);
    int code = bits < 1u << 23 ? (bits > 1u << 22 ? 1 : 0) : rounded_up(bits);
    if (a == HUGE_VALF) code = 254;
    const float s = scale_of_byte(static_cast<uint32_t>(code));
    return {s, 1 / s};
  }

  ProgramScale te(float a) const {
    float encode = at_most(top_ / a, FLT_MAX);
    if (a == 0 || !(a < HUGE_VALF)) encode = 1;
    if (power_of_two_scale()) encode = without_mantissa(encode);
    return {1 / encode, encode};
  }

  ProgramScale torchao_nvfp4(float a, const ProgramTensor& of) const {
    constexpr float kLeast = 0x1p-6f, kMost = 448;
    const float exact = a / 6;
    if (!b_.has_tensor_scale()) {
      const float s = e4m3(at_most(at_least(exact, kLeast), kMost));
      return {s, 1 / s};
    }
    const float s = e4m3(at_most(at_least(exact / of.t, kLeast), kMost));
    return {s, (1 / of.t) / s};
  }

  ProgramScale torchao_mx(float a) const {
    if (!(a < HUGE_VALF)) return {NAN, NAN};
    const float s = static_cast<float>(exact_scale<double>(a, b_, 1.0, b_.target));
    return {s, 1 / at_least(s, 0x1p-126f)};
  }

  ProgramScale torchao(float a) const {
    const double wide = a < 1e-12 ? 1e-12 : a;
    float encode = static_cast<float>(b_.element_max / wide);
    if (power_of_two_scale()) encode = without_mantissa(encode);
    return {1 / encode, encode};
  }

  ProgramScale torchao_integers(float a) const {
    if (b_.target > b_.element_max) {
      const float s = at_least(a / target_, 0x1p-23f);
      return {s, 1 / s};
    }
    const float s = a / top_;
    return {s, divides_ ? s : 1 / at_least(s, 1e-12f)};
  }

  ProgramScale deepgemm(float a) const {
    float s = at_least(a, 1e-4f) / top_;
    if (power_of_two_scale()) {
      const int code = rounded_up(bits_of_float(s) & 0x7fffffffu);
      s = scale_of_byte(code < 1 ? 1 : code > 254 ? 254 : code);
    }
    return {s, 1 / s};
  }

  BlockFormat b_;
  float top_, target_;
  bool divides_;
};

}  // namespace lpk
