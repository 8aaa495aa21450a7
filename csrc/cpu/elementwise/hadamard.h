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
  int64_t stream_bytes;  // from this much memory, read and written, results go past the caches
};

void hadamard(const HadamardArgs& args);

// kHadamardLanes runs side by side: x[i * x_stride + r] is value i of run r.
struct HadamardTile {
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  int size;
  const uint32_t* signs;
};

// Runs one behind the other.
struct HadamardRuns {
  const float* x;
  float* y;
  int64_t count;
  int size;
  const uint32_t* signs;
  bool streamed;  // y, aligned to 64 bytes, will not be read soon: past the caches
};

struct HadamardKernels {
  // The result has a bit for each run: 1 where the kernel cannot decide how some quotient is
  // rounded, or the run has an infinity or NaN, and this run's y must be made anew.
  uint32_t (*side_by_side)(const HadamardTile&);
  // Whether double holds all sums of all runs and every rounding is decided. If not, all of y must
  // be made anew.
  bool (*one_by_one)(const HadamardRuns&);
};

}  // namespace lpk
