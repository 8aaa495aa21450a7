// How a certified tier hands on what it cannot do.
#pragma once

#include "cpu/drivers/tile.h"

namespace lpk {

// A function that does the parts of a tile of which a certificate does not hold. The function
// outlives this, which refers to it. Always inlined: a call that the linker shares would be of one
// instruction set.
class ExactSums {
 public:
  template <class Function>
  __attribute__((always_inline)) ExactSums(const Function& function)
      : function_(&function), call_([](const void* object, const Tile& part) {
          (*static_cast<const Function*>(object))(part);
        }) {}
  __attribute__((always_inline)) void operator()(const Tile& part) const { call_(function_, part); }

 private:
  const void* function_;
  void (*call_)(const void*, const Tile&);
};

}  // namespace lpk
