// How a certified tier hands on the parts of a tile that it cannot make.
#pragma once

#include "cpu/drivers/tile.h"

namespace lpk {

// A function for the parts of a tile for which a certificate does not hold. It must outlive this
// object, which only refers to it. Always inlined: a copy shared by the linker would be compiled
// for one instruction set.
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
