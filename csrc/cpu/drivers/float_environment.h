// The arithmetic every kernel assumes, whatever the process has set: round to nearest, subnormals
// kept, no traps.
#pragma once

#include "cpu/lanes/control_word.h"

namespace lpk {

class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(control_word()) { set_usual_control(); }
  ~FloatEnvironment() { set_control_word(saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  ControlWord saved_;
};

}  // namespace lpk
