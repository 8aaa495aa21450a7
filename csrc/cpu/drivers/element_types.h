// Element types of quantize.
#pragma once

#include <cstdint>

namespace lpk {

enum class ElementType : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kFloat64 = 3 };

inline int64_t element_bytes(ElementType type) {
  return type == ElementType::kFloat64 ? 8 : type == ElementType::kFloat32 ? 4 : 2;
}

}  // namespace lpk
