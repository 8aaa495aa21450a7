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

// What a program computes of a whole tensor: t, and TransformerEngine's scale of the scales.
struct ProgramTensor {
  float t = 1, encode = 1, decode = 1;

  ProgramTensor() = default;
  ProgramTensor(float amax, const BlockFormat& b) {
    if (!b.has_tensor_scale()) return;
    constexpr float kLargest = 448 * 6;
    t = amax / kLargest;
    encode = at_most(kLargest / amax, FLT_MAX);
    if (amax == 0 || encode == 0) encode = 1;
    decode = 1 / encode;
  }
};

// The scale s of a tile, and the float32 by which its elements are multiplied.
struct ProgramScale {
  float s, factor;
};

class Program {
 public:
  Program(const BlockFormat& format, Rounding rounding, float amax)
      : b_(format),
        tensor_(amax, format),
        top_(static_cast<float>(format.element_max)),
        target_(static_cast<float>(format.target)),
        divides_(format.steps == Steps::kTorchao && format.is_integer &&
                 format.target <= format.element_max && rounding == Rounding::kStochastic) {}

  float tensor_scale() const { return tensor_.t; }
  // Whether elements are divided by s, and are 0 where s is.
  bool divides() const { return divides_; }

  // a: the largest magnitude of the tile, which may be an infinity or NaN.
  ProgramScale scale(float a) const {
    const bool narrow = b_.kind == ScaleKind::kFloat || b_.kind == ScaleKind::kTensor;
    switch (b_.steps) {
      case Steps::kTe:
        return narrow ? te_nvfp4(a) : b_.mx ? te_mx(a) : te(a);
      case Steps::kTorchao:
        if (b_.is_integer) return torchao_integers(a);
        return narrow ? torchao_nvfp4(a) : b_.mx ? torchao_mx(a) : torchao(a);
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

  ProgramScale te_nvfp4(float a) const {
    const float sixth = 1.0f / 6;
    const float s = e4m3(at_most(a * (tensor_.encode * sixth), FLT_MAX));
    return {s, at_most(1 / (s * tensor_.decode), FLT_MAX)};
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

  ProgramScale torchao_nvfp4(float a) const {
    constexpr float kLeast = 0x1p-6f, kMost = 448;
    const float exact = a / 6;
    if (!b_.has_tensor_scale()) {
      const float s = e4m3(at_most(at_least(exact, kLeast), kMost));
      return {s, 1 / s};
    }
    const float s = e4m3(at_most(at_least(exact / tensor_.t, kLeast), kMost));
    return {s, (1 / tensor_.t) / s};
  }

  ProgramScale torchao_mx(float a) const {
    if (!(a < HUGE_VALF)) return {NAN, NAN};
    const float s = static_cast<float>(exact_scale<double>(a, b_, 1.0));
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
  ProgramTensor tensor_;
  float top_, target_;
  bool divides_;
};

}  // namespace lpk
