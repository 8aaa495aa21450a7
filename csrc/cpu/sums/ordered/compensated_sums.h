// Kahan's sums, every operation rounded.
#pragma once

#include "ordered_sums.h"

namespace lpk {
namespace {

// Plane 0 holds the errors.
template <class V, int kGroup>
struct CompensatedSums : OrderedSums<V, kGroup> {
  using Base = OrderedSums<V, kGroup>;
  using D = typename V::D;
  using Base::Base, Base::kRows, Base::kVectors, Base::t, Base::acc;

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
            // There are no draws, because the order has no stochastic rounding.
            const auto add = [&](D x, D addend) __attribute__((always_inline)) {
              return this->add(x, addend, r, v, 0);
            };
            D next = sum[r][v], rest = error[r][v];
            add_compensated<D>(next, rest, this->product(r, v, k), add);
            sum[r][v] = this->where(lanes, v, next, sum[r][v]);
            error[r][v] = this->where(lanes, v, rest, error[r][v]);
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
