// Element types of quantize: widened to double exactly, narrowed from values that the type holds.
#pragma once

#include <cstdint>
#include <cstring>

namespace lpk {

enum class ElementType : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kFloat64 = 3 };

inline int64_t element_bytes(ElementType type) {
  return type == ElementType::kFloat64 ? 8 : type == ElementType::kFloat32 ? 4 : 2;
}

inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Half's exponent field moves into float's; 2^112 makes up for the difference of the biases,
// subnormals included.
inline double widen_half(uint16_t h) {
  const uint32_t magnitude = (h & 0x7fffu) << 13;
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  const float finite = float_of_bits(magnitude) * 0x1p112f;
  const float value = special != 0 ? float_of_bits(special | (magnitude & 0x007fffffu)) : finite;
  return (h & 0x8000u) != 0 ? -value : value;
}

inline uint16_t narrow_half(float x) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t finite = bits_of_float(float_of_bits(magnitude) * 0x1p-112f) >> 13;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return static_cast<uint16_t>(sign | (magnitude >= 0x7f800000u ? special : finite));
}

inline void widen(const void* from, ElementType type, int64_t begin, int64_t count, double* to) {
  switch (type) {
    case ElementType::kFloat32:
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<const float*>(from)[begin + i];
      return;
    case ElementType::kFloat16:
      for (int64_t i = 0; i < count; ++i)
        to[i] = widen_half(static_cast<const uint16_t*>(from)[begin + i]);
      return;
    case ElementType::kBfloat16:
      for (int64_t i = 0; i < count; ++i) {
        to[i] = float_of_bits(static_cast<uint32_t>(static_cast<const uint16_t*>(from)[begin + i])
                              << 16);
      }
      return;
    case ElementType::kFloat64:
      std::memcpy(to, static_cast<const double*>(from) + begin, count * sizeof(double));
      return;
  }
}

// Every NaN becomes the canonical one of the type (0x7fc00000 in float32).
inline void narrow(const double* from, ElementType type, int64_t begin, int64_t count, void* to) {
  switch (type) {
    case ElementType::kFloat32:
      for (int64_t i = 0; i < count; ++i) {
        const float x = static_cast<float>(from[i]);
        static_cast<float*>(to)[begin + i] = x == x ? x : float_of_bits(0x7fc00000u);
      }
      return;
    case ElementType::kFloat16:
      for (int64_t i = 0; i < count; ++i) {
        const float x = static_cast<float>(from[i]);
        static_cast<uint16_t*>(to)[begin + i] = x == x ? narrow_half(x) : uint16_t{0x7e00};
      }
      return;
    case ElementType::kBfloat16:
      for (int64_t i = 0; i < count; ++i) {
        const float x = static_cast<float>(from[i]);
        static_cast<uint16_t*>(to)[begin + i] =
            x == x ? static_cast<uint16_t>(bits_of_float(x) >> 16) : uint16_t{0x7fc0};
      }
      return;
    case ElementType::kFloat64:
      for (int64_t i = 0; i < count; ++i) {
        static_cast<double*>(to)[begin + i] = from[i] == from[i] ? from[i] : __builtin_nan("");
      }
      return;
  }
}

inline double widen_one(const void* from, ElementType type, int64_t index) {
  double x;
  widen(from, type, index, 1, &x);
  return x;
}

}  // namespace lpk
