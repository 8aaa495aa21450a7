// The control word of the processor's floating-point unit, and the directions that it rounds in.
// The usual one: to nearest, subnormals kept, no traps.
#pragma once

#include <cfenv>
#include <cstdint>

#include "common/format.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace lpk {

#if defined(__SSE2__)
using ControlWord = unsigned;
LPK_HD ControlWord control_word() { return _mm_getcsr(); }
// The empty assembly keeps Clang from moving a load or a store past the change, as GCC never does.
LPK_HD void set_control_word(ControlWord word) {
  asm volatile("" ::: "memory");
  _mm_setcsr(word);
  asm volatile("" ::: "memory");
}
LPK_HD ControlWord usual_control() { return 0x1F80; }

constexpr int kNearestMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
constexpr int kZero = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
LPK_HD ControlWord rounding_by(int mode, ControlWord word) {
  constexpr unsigned kRounding = _MM_FROUND_TO_ZERO;
  return (word & ~(kRounding << 13)) | (mode & kRounding) << 13;
}
#elif defined(__aarch64__)
// FPCR. Its bits that flush subnormals are three: of float16, of what instructions read, of others.
using ControlWord = uint64_t;
LPK_HD ControlWord control_word() {
  ControlWord word;
  asm volatile("mrs %0, fpcr" : "=r"(word)::"memory");
  return word;
}
LPK_HD void set_control_word(ControlWord word) {
  asm volatile("msr fpcr, %0" ::"r"(word) : "memory");
}
LPK_HD ControlWord usual_control() { return 0; }

constexpr int kNearestMode = 0, kUp = 1, kDown = 2, kZero = 3;
LPK_HD ControlWord rounding_by(int mode, ControlWord word) {
  return (word & ~(ControlWord{3} << 22)) | ControlWord(mode) << 22;
}
#else
struct ControlWord {
  std::fenv_t environment;
};
LPK_HD ControlWord control_word() {
  ControlWord word;
  std::fegetenv(&word.environment);
  return word;
}
LPK_HD void set_control_word(const ControlWord& word) { std::fesetenv(&word.environment); }
LPK_HD ControlWord usual_control() {
  const ControlWord saved = control_word();
  std::fesetenv(FE_DFL_ENV);
  const ControlWord usual = control_word();
  set_control_word(saved);
  return usual;
}
#endif

// The processor has a control word from construction to destruction. Rounded values must be loaded
// and stored in between: no compiler moves a load or a store past either end.
class ControlScope {
 public:
  LPK_HD explicit ControlScope(const ControlWord& word) : saved_(control_word()) {
    set_control_word(word);
  }
  LPK_HD ~ControlScope() { set_control_word(saved_); }
  ControlScope(const ControlScope&) = delete;
  ControlScope& operator=(const ControlScope&) = delete;

 private:
  ControlWord saved_;
};

// The arithmetic every kernel assumes, whatever the process has set.
struct FloatEnvironment : ControlScope {
  LPK_HD FloatEnvironment() : ControlScope(usual_control()) {}
};

}  // namespace lpk
