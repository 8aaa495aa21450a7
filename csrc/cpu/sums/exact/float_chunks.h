// The end of a chunk in float32 lanes of AVX-512; included by chunks.h.
#pragma once

#include "float_lane_rules.h"

namespace lpk {
namespace {

template <>
class FloatChunks<Avx512> {
  using L = RoundedLanes<float>;
  using Rule = NarrowRule<L, Rounding::kNearestEven>;

 public:
  explicit FloatChunks(const Accumulator& acc)
      : fits_(acc.outer_rounding == Rounding::kNearestEven && !acc.outer.is_unsigned &&
              Rule::fits(acc.outer, acc.random_bits)),
        rule_(acc.outer, acc.random_bits) {}

  bool close(const Tile& t, int64_t row, int64_t rows, int64_t lane) const {
    if (!fits_) return false;
    float* inner = t.inner + row * t.stride + lane;
    float* outer = t.outer + row * t.stride + lane;
    for (int64_t r = 0; r < rows; ++r, inner += t.stride, outer += t.stride) {
      const L::F sum = sum_alone<L, Rounding::kNearestEven>(L::load(outer), L::load(inner));
      L::store(outer, rule_(sum, LaneDraws<L>{}));
      L::store(inner, L::all(0));
    }
    return true;
  }

 private:
  bool fits_;
  Rule rule_;
};

}  // namespace
}  // namespace lpk
