// The sums of a group as they were before a block of k.
#pragma once

#include <cstring>

#include "cpu/drivers/tile.h"
#include "cpu/lanes/lanes.h"

namespace lpk {
namespace {

// The state of some rows and lanes, to restore. The first block of k mostly starts from +0.
template <int kRows, int kLanes>
struct Snapshot {
  using Words = Vec<8>::U;

  float inner[kRows][kLanes];
  float outer[kRows][kLanes];
  bool negative_zero = false;
  bool infinite = false;  // or NaN

  explicit Snapshot(const Tile& t) {
    if (!t.at_zero()) take(t);
  }
  // This, like all that happens once a block, is compiled once, and not in every kernel.
  __attribute__((noinline)) void take(const Tile& t) {
    Words zeros{}, tops{};
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(inner[r], t.inner + r * t.stride, sizeof inner[r]);
      std::memcpy(outer[r], t.outer + r * t.stride, sizeof outer[r]);
      // Sums are copied by vectors: one by one the copies took a tenth of the time of a block.
      for (int l = 0; l < kLanes; l += Vec<8>::kWidth) {
        const Words bits = lpk::load<Words>(t.inner + r * t.stride + l);
        zeros |= (Words)(bits == 0x80000000u);
        tops |= (Words)((bits & 0x7f800000u) == 0x7f800000u);
      }
    }
    for (int i = 0; i < Vec<8>::kWidth; ++i) {
      negative_zero |= zeros[i] != 0;
      infinite |= tops[i] != 0;
    }
  }
  __attribute__((noinline)) bool has_nan() const {
    if (!infinite) return false;
    bool nan = false;
    for (const auto& row : inner) {
      for (float x : row) nan |= x != x;
    }
    return nan;
  }
  __attribute__((noinline)) void restore(const Tile& t) const {
    for (int r = 0; r < kRows; ++r) {
      float* to_inner = t.inner + r * t.stride;
      float* to_outer = t.outer + r * t.stride;
      if (t.at_zero()) {
        std::memset(to_inner, 0, sizeof inner[r]);
        std::memset(to_outer, 0, sizeof outer[r]);
      } else {
        std::memcpy(to_inner, inner[r], sizeof inner[r]);
        std::memcpy(to_outer, outer[r], sizeof outer[r]);
      }
    }
  }
};

}  // namespace
}  // namespace lpk
