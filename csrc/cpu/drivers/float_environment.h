// The arithmetic every kernel assumes, whatever the process has set: round to nearest, subnormals
// kept, no traps.
#pragma once

#include <cfenv>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace lpk {

class FloatEnvironment {
 public:
#if defined(__SSE2__)
  // The empty assembly keeps Clang from moving a load or a store past either end.
  FloatEnvironment() : saved_(_mm_getcsr()) {
    _mm_setcsr(0x1F80);
    asm volatile("" ::: "memory");
  }
  ~FloatEnvironment() {
    asm volatile("" ::: "memory");
    _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
#else
  FloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif

 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;
};

}  // namespace lpk
