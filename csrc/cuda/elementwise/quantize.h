// Elementwise rounding on a CUDA device. No CUDA type crosses this header: bindings include it with
// a plain C++ compiler.
#pragma once

#include <cstdint>

namespace lpk::cuda {

constexpr int kMaxDims = 8;

enum class ElementType : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kFloat64 = 3 };

// Two strided views of one shape, strides in elements; dims == 0 is a single element.
struct Views {
  int32_t dims;
  int64_t count;
  int64_t sizes[kMaxDims];
  int64_t x_strides[kMaxDims];
  int64_t out_strides[kMaxDims];
};

// How the draws are keyed. `device_seed`, when not null, is a device pointer to the int64 that
// replaces `seed`.
struct Draws {
  uint64_t seed;
  const int64_t* device_seed;
  uint64_t role;
  uint32_t site;
};

// out[i] = round(x[i]) on `stream`; `quantizer` holds eight format integers (FloatFormat or
// FixedFormat), then rounding, random_bits, rng. Throws std::invalid_argument for arguments it
// cannot take, std::runtime_error for a CUDA error.
void quantize(const void* x, ElementType x_type, void* out, ElementType out_type,
              const Views& views, const int64_t* quantizer, const Draws& draws, void* stream);

}  // namespace lpk::cuda
