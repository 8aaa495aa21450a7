// Operands as the certified kernels multiply them.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/drivers/aligned.h"
#include "exact_sums.h"

namespace lpk {
namespace {

// The operands of a tile in the precision of S, the factor (CertifiedJob) times 2^by. If its
// exponents have no room, the other operand is scaled by 2^other. Valid until the thread makes the
// next Operands of this `set`: a tile may need two.
template <class S>
struct Operands {
  using Scalar = typename S::Scalar;

  Operands(const CertifiedJob& job, int by, int other = 0, int set = 0)
      : from_a_(job.tile.a), from_b_(job.tile.b) {
    const Tile& t = job.tile;
    a_ = copy<0>(t.a, t.a_floats(), job.scales_b() ? other : by, set);
    b_ = copy<1>(t.b, t.lanes * t.depth, job.scales_b() ? by : other, set);
  }

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
