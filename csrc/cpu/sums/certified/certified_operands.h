// Operands as the certified kernels multiply them.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/drivers/aligned.h"
#include "cpu/drivers/tile.h"

namespace lpk {
namespace {

// The operands of a tile in the precision of S, the smaller one times 2^by: the other lies in cache
// or over more memory. If the smaller one's exponents have no room, the other is scaled by 2^other.
// Valid until the thread makes the next Operands of this `set`: a tile may need two.
template <class S>
struct Operands {
  using Scalar = typename S::Scalar;

  Operands(const Tile& t, int by, int other = 0, int set = 0) : from_a_(t.a), from_b_(t.b) {
    const int64_t b_count = t.lanes * t.depth;
    a_ = copy<0>(t.a, t.a_floats(), scales_b(t) ? other : by, set);
    b_ = copy<1>(t.b, b_count, scales_b(t) ? by : other, set);
  }
  static bool scales_b(const Tile& t) { return t.spread() || t.lanes < t.rows; }

  // Where the operands of a part of the tile begin.
  const Scalar* a_of(const Tile& part) const { return a_ + (part.a - from_a_); }
  const Scalar* b_of(const Tile& part) const { return b_ + (part.b - from_b_); }

 private:
  template <int kSide>
  __attribute__((noinline)) static const Scalar* copy(const float* x, int64_t count, int by,
                                                      int set) {
    if constexpr (!S::kDouble) {
      if (by == 0) return x;
    }
    thread_local std::vector<Scalar, LineAllocator<Scalar>> sets[2];
    auto& scaled = sets[set];
    scaled.resize(count);
    const Scalar scale = std::ldexp(Scalar{1}, by);
    std::transform(x, x + count, scaled.begin(), [=](Scalar v) { return v * scale; });
    return scaled.data();
  }

  const float *from_a_, *from_b_;
  const Scalar *a_, *b_;
};

}  // namespace
}  // namespace lpk
