// Hadamard transforms with random signs, rounded to bfloat16 (lpkernels/reference/hadamard.py).
#pragma once

#include <cstdint>

#include "cpu/drivers/element_types.h"

namespace lpk {

constexpr int kMaxHadamard = 128;
// Runs that a kernel transforms side by side.
constexpr int kHadamardLanes = 16;

// A tensor in row-major order, its axis in the middle; `size` divides `length`.
struct HadamardArgs {
  const void* x;  // float32, float16 or bfloat16
  float* y;
  ElementType x_type;
  int64_t outer, length, inner;
  int size;               // 16, 32, 64 or 128
  const uint32_t* signs;  // 0x80000000 where a value of a run is negated, else 0
  int threads;
};

void hadamard(const HadamardArgs& args);

// kHadamardLanes runs side by side: x[i * kHadamardLanes + r] is value i of run r.
struct HadamardTile {
  const float* x;
  float* y;
  int size;
  const uint32_t* signs;
};

// One for each instruction set. The result has a bit for each run: 1 where the kernel could not
// decide how some quotient is rounded, or the run has an infinity or NaN, and y must be made anew.
using HadamardKernel = uint32_t(const HadamardTile&);
HadamardKernel hadamard_tile_scalar;
HadamardKernel hadamard_tile_avx2;
HadamardKernel hadamard_tile_avx512;

}  // namespace lpk
