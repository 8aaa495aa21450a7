// Kahan's sums, every operation rounded.
#pragma once

#include "ordered_sums.h"

namespace lpk {
namespace {

// y = p - c;  s' = s + y;  c' = (s' - s) - y: four roundings. Plane 0 holds c.
template <class V, int kGroup, bool kNearest, bool kRoundsProducts>
struct CompensatedSums : OrderedSums<V, kGroup, kNearest, kRoundsProducts> {
  using Base = OrderedSums<V, kGroup, kNearest, kRoundsProducts>;
  using D = typename V::D;
  using Base::Base, Base::kRows, Base::kVectors, Base::t, Base::acc;

  LPK_HD void step(D& sum, D& error, int r, int v, int64_t k) {
    D y;
    if constexpr (kNearest && !kRoundsProducts) {
      const D odd = odd_product_sum<D>(-error, this->left(r, v, k), this->right(v, k));
      y = round_to_float_nearest_even<D>(odd, acc.fmt);
    } else {
      y = this->add(-error, this->product(r, v, k), r, v, 0);
    }
    add_compensated<D>(sum, error, y, [&](D x, D addend) __attribute__((always_inline)) {
      return this->add(x, addend, r, v, 0);
    });
  }

  void run() {
    D sum[kRows][kVectors], error[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = load_floats<V>(this->state(t.inner, r, v));
        error[r][v] = load_floats<V>(this->state(t.planes, r, v));
      }
    }
    const auto span = [&](int64_t from, int64_t to) {
      for (int64_t k = from; k < to; ++k) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const uint32_t lanes = this->present(r, k);
          if (lanes == 0) continue;
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            const D old_sum = sum[r][v], old_error = error[r][v];
            step(sum[r][v], error[r][v], r, v, k);
            sum[r][v] = this->where(lanes, v, sum[r][v], old_sum);
            error[r][v] = this->where(lanes, v, error[r][v], old_error);
          }
        }
      }
    };
    const auto close = [&](int64_t chunk) {
      if (acc.chunk == 0) return;
      this->finish(sum, chunk);
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sum[r][v] = error[r][v] = D{};
      }
    };
    this->for_each_sum(span, close);
    this->store_sums(sum);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) store_floats<V>(this->state(t.planes, r, v), error[r][v]);
    }
  }
};

}  // namespace
}  // namespace lpk
