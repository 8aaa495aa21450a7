// Dense codes: a b-bit format costs b bits a value, in element order, least significant bit first.
#pragma once

#include <cstdint>

namespace lpk {

struct PackArgs {
  const int64_t* format;  // 8 integers, 16 for a block format
  int64_t count;
  int64_t outer, length, inner;  // of the block format's axis
  int threads;
};

// Index of the first value that has no code (infinity, or NaN where the format has none), -1 if all
// were packed.
int64_t pack(const PackArgs& args, const float* x, uint8_t* codes);
void unpack(const PackArgs& args, const uint8_t* codes, float* x);
int64_t packed_bytes(const PackArgs& args);

}  // namespace lpk
