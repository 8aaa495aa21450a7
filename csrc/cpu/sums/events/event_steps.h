// Events of sums that take one product after the other: sequential ones and Kahan's.
#pragma once

#include "common/orders.h"
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
      const int64_t at = k - s.piece.from;
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
        put_step(s.piece, row + r, at, added, lost, over);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        store_floats<V>(s.inner[row + r] + v * V::kWidth, sum[r][v]);
    }
  }
  void close(int64_t row) {
    (void)row;  // The sum is in the state already.
  }
};

// Kahan's sums: p is lost where neither sum nor correction changes.
template <class V, bool kNearest, bool kRoundsProducts>
struct CompensatedEvents : EventRules<V, kNearest, kRoundsProducts, 1> {
  using Base = EventRules<V, kNearest, kRoundsProducts, 1>;
  using D = typename V::D;
  using Base::Base, Base::kVectors, Base::s;
  float correction[kEventRows][kPanel] = {};

  void span(int64_t row, int64_t from, int64_t to) {
    for (int64_t k = from; k < to; ++k) {
      const int64_t at = k - s.piece.from;
      uint32_t added = 0, lost = 0, over = 0;
      for (int v = 0; v < kVectors; ++v) {
        float* const inner = s.inner[row] + v * V::kWidth;
        float* const error = correction[row] + v * V::kWidth;
        uint32_t out;
        const D p = this->product(this->left(row, at), this->right(v, at), 0, v, k, out);
        const D sum = load_floats<V>(inner), c = load_floats<V>(error);
        const auto add = [&](D x, D addend) { return this->add(x, addend, 0, v, k, out); };
        D total = sum, next = c;
        add_compensated<D>(total, next, p, add);
        const uint32_t counts =
            nonzero_lanes<V>(p) & finite_lanes<V>(p) & finite_lanes<V>(sum) & finite_lanes<V>(c);
        added |= counts << (v * V::kWidth);
        lost |= (counts & equal_lanes<V>(total, sum) & equal_lanes<V>(next, c)) << (v * V::kWidth);
        over |= out << (v * V::kWidth);
        store_floats<V>(inner, total);
        store_floats<V>(error, next);
      }
      put_step(s.piece, row, at, added, lost, over);
    }
  }
  void close(int64_t row) { std::fill(correction[row], correction[row] + kPanel, 0.0f); }
};

}  // namespace
}  // namespace lpk
