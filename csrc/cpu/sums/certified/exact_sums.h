// What a certified tier is given, and how it hands on the parts of a tile that it cannot make.
#pragma once

#include <algorithm>

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

// A tile for a certified tier, its accumulator, and the ranges of its operands.
struct CertifiedJob {
  const Tile& tile;
  const Accumulator& acc;
  const OperandRange &a, &b;
  const ExactSums& exact;

  // The operand that is scaled is the smaller one: the other lies in cache or over more memory.
  bool scales_b() const { return tile.spread() || tile.lanes < tile.rows; }
  const OperandRange& factor() const { return scales_b() ? b : a; }
  const OperandRange& other() const { return scales_b() ? a : b; }
  // Products of the longest sum in the tile.
  int64_t terms() const { return acc.chunk > 0 ? std::min(acc.chunk, tile.depth) : tile.depth; }
};

}  // namespace lpk
