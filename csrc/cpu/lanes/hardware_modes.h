// The roundings of the processor, and which of them goes with a mode.
#pragma once

#include <immintrin.h>

#include "portable.h"

namespace lpk {
namespace {

constexpr int kNearestMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
constexpr int kZero = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

// The processor's mode for one of ours. Our modes that look at magnitudes round these toward zero.
template <Rounding kMode>
constexpr int hardware_mode() {
  if (kMode == Rounding::kNearestEven) return kNearestMode;
  if (kMode == Rounding::kTowardPositive) return kUp;
  if (kMode == Rounding::kTowardNegative) return kDown;
  return kZero;
}

// With the usual rounding, or with instructions that take their own, there is nothing to do.
struct UsualRounding {
  using Paused = UsualRounding;
};

// The processor rounds so from construction to destruction, for instructions that take no rounding
// of their own. What is rounded inside must come from memory and go to memory inside, which
// compilers move past neither end.
class ProcessorMode {
 public:
  explicit ProcessorMode(int mode) : saved_(_mm_getcsr()) {
    constexpr unsigned kRounding = _MM_FROUND_TO_ZERO;
    _mm_setcsr((saved_ & ~(kRounding << 13)) | (mode & kRounding) << 13);
  }
  ~ProcessorMode() { _mm_setcsr(saved_); }
  ProcessorMode(const ProcessorMode&) = delete;
  ProcessorMode& operator=(const ProcessorMode&) = delete;

 private:
  unsigned saved_;
};

// The same for a mode known to the compiler.
template <int kMode>
struct ProcessorRounding : ProcessorMode {
  // Inside, the processor rounds to nearest again.
  using Paused = ProcessorRounding<kNearestMode>;

  ProcessorRounding() : ProcessorMode(kMode) {}
};

}  // namespace
}  // namespace lpk
