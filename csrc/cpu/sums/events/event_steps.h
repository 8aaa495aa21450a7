// Events of sums that take one product after the other.
#pragma once

#include "event_sums.h"

namespace lpk {
namespace {

// sum <- round(sum + p): p is lost where the sum stays.
template <class V, bool kNearest, bool kRoundsProducts, int kRows>
struct SequentialEvents : EventRules<V, kNearest, kRoundsProducts, kRows> {
  using Base = EventRules<V, kNearest, kRoundsProducts, kRows>;
  using D = typename V::D;
  using Base::Base, Base::kVectors, Base::s;

  void span(int64_t row, int64_t from, int64_t to) {
    D sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = load_floats<V>(s.inner[row + r] + v * V::kWidth);
    }
    for (int64_t k = from; k < to; ++k) {
      const int64_t at = k - s.from;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const D a = this->left(row + r, at);
        uint32_t added = 0, lost = 0, over = 0;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          uint32_t out;
          const D p = this->product(a, this->right(v, at), r, v, k, out);
          const D before = sum[r][v];
          const D after = this->add(before, p, r, v, k, out);
          uint32_t counts = nonzero_lanes<V>(p) & finite_lanes<V>(before);
          if (kRoundsProducts) counts &= finite_lanes<V>(p);
          added |= counts << (v * V::kWidth);
          lost |= (counts & equal_lanes<V>(after, before)) << (v * V::kWidth);
          over |= out << (v * V::kWidth);
          sum[r][v] = after;
        }
        s.count_products(row + r, added, lost, over);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        store_floats<V>(s.inner[row + r] + v * V::kWidth, sum[r][v]);
    }
  }
};

}  // namespace
}  // namespace lpk
