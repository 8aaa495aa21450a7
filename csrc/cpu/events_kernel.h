// The loop of events.h over lanes of doubles. The state of a few rows stays while all of k passes
// by in packed pieces.
#pragma once

#include <algorithm>
#include <cmath>

#include "events.h"
#include "vector.h"

namespace lpk {
namespace {

constexpr int64_t kEventDepth = 512;

// The same format without a largest value: what a value is before it overflows.
inline Format unbounded(Format f) {
  f.max = HUGE_VAL;
  f.lowest = -HUGE_VAL;
  f.overflow_from = HUGE_VAL;
  if (f.overflow == Overflow::kWrap) f.overflow = Overflow::kSaturate;
  return f;
}

template <class D>
LPK_HD auto is_finite(D x) {
  return (x - x) == 0.0;
}

template <class D>
LPK_HD auto exceeds(D exact, const Format& f, const Format& free, Rounding mode, D threshold) {
  const D r = round_to<D>(exact, free, mode, threshold);
  const double lowest = f.kind == Kind::kFixed ? f.lowest : -f.max;
  return ((r > f.max) | (r < lowest)) & is_finite(exact);
}

// Sums of kWidth lanes of one row, and what was counted in them.
template <class D>
struct EventSums {
  D inner{}, outer{};
  D swamped{}, added{}, swamped_chunks{}, added_chunks{}, overflowed{};
};

template <class V>
class EventLoop {
  using D = typename V::D;
  using L = Lanes<D>;
  static constexpr int kWidth = V::kWidth;

 public:
  EventLoop(const EventArgs& args, int64_t lane, int64_t lanes)
      : args_(args),
        acc_(accumulator_from(args.accumulator)),
        lane_(lane),
        lanes_(lanes),
        free_sum_(unbounded(acc_.fmt)),
        free_product_(unbounded(acc_.product)),
        free_outer_(unbounded(acc_.outer)) {}

  // One product of every lane.
  void step(EventSums<D>& s, int64_t row, D a, D b, int64_t k) const {
    D product = a * b;
    auto over = product != product;
    if (acc_.has_product) {
      const D threshold = draw(acc_.product_rounding, kSiteProduct, row, k);
      over = exceeds<D>(product, acc_.product, free_product_, acc_.product_rounding, threshold);
      product = round_to<D>(product, acc_.product, acc_.product_rounding, threshold);
    }
    const D threshold = draw(acc_.rounding, kSiteSum, row, k);
    const D before = s.inner;
    s.inner = add_rounded<D>(before, product, acc_.fmt, acc_.rounding, threshold);
    over = over |
           exceeds<D>(odd_sum<D>(before, product), acc_.fmt, free_sum_, acc_.rounding, threshold);
    const auto counts = (product != 0.0) & is_finite(product) & is_finite(before);
    const auto lost = counts & (s.inner == before);
    s.added += counts ? L::all(1.0) : D{};
    s.swamped += lost ? L::all(1.0) : D{};
    s.overflowed = over ? L::all(1.0) : s.overflowed;
    if (args_.products != nullptr) {
      write(lost, over, args_.products + ((row * args_.k) + k) * args_.n + lane_);
    }
  }

  void close(EventSums<D>& s, int64_t row, int64_t chunk) const {
    const D threshold = draw(acc_.outer_rounding, kSiteOuter, row, chunk);
    const D before = s.outer;
    s.outer = add_rounded<D>(before, s.inner, acc_.outer, acc_.outer_rounding, threshold);
    const auto over = exceeds<D>(odd_sum<D>(before, s.inner), acc_.outer, free_outer_,
                                 acc_.outer_rounding, threshold);
    const auto counts = (s.inner != 0.0) & is_finite(s.inner) & is_finite(before);
    const auto lost = counts & (s.outer == before);
    s.added_chunks += counts ? L::all(1.0) : D{};
    s.swamped_chunks += lost ? L::all(1.0) : D{};
    s.overflowed = over ? L::all(1.0) : s.overflowed;
    if (args_.chunks != nullptr) {
      const int64_t chunks = (args_.k + acc_.chunk - 1) / acc_.chunk;
      write(lost, over, args_.chunks + (row * chunks + chunk) * args_.n + lane_);
    }
    s.inner = D{};
  }

  // Products from .. to of one row; `columns` holds the lanes of b from `from` on.
  void run(EventSums<D>& s, int64_t row, const double* columns, int64_t from, int64_t to) const {
    const float* a = args_.a + row * args_.a_row;
    for (int64_t k = from; k < to; ++k) {
      const D column = load<D>(columns + (k - from) * kWidth);
      step(s, row, L::all(a[k * args_.a_k]), column, k);
      const bool last = k + 1 == args_.k;
      if (acc_.chunk > 0 && ((k + 1) % acc_.chunk == 0 || last)) close(s, row, k / acc_.chunk);
    }
  }

  void finish(const EventSums<D>& s, int64_t row, EventCounts* counts) const {
    const D total = acc_.chunk > 0 ? s.outer : s.inner;
    double values[6][kWidth];
    const D parts[6] = {s.swamped, s.added, s.swamped_chunks, s.added_chunks, s.overflowed, total};
    for (int i = 0; i < 6; ++i) store(values[i], parts[i]);
    for (int64_t l = 0; l < lanes_; ++l) {
      counts->swamped += static_cast<int64_t>(values[0][l]);
      counts->added += static_cast<int64_t>(values[1][l]);
      counts->swamped_chunks += static_cast<int64_t>(values[2][l]);
      counts->added_chunks += static_cast<int64_t>(values[3][l]);
      counts->overflowed += static_cast<int64_t>(values[4][l]);
      if (args_.c != nullptr) args_.c[row * args_.n + lane_ + l] = canonical_float(values[5][l]);
    }
  }

 private:
  D draw(Rounding mode, uint32_t site, int64_t row, int64_t k) const {
    if (mode != Rounding::kStochastic) return D{};
    double draws[kWidth] = {};
    for (int64_t l = 0; l < lanes_; ++l) {
      draws[l] =
          random_draw(acc_.rng, args_.seed, site, static_cast<uint64_t>(args_.row_id[row]),
                      static_cast<uint64_t>(lane_ + l), static_cast<uint64_t>(k), acc_.random_bits);
    }
    return stochastic_threshold<D>(load<D>(draws), acc_.random_bits);
  }

  template <class Lost, class Over>
  void write(Lost lost, Over over, uint8_t* to) const {
    double bits[kWidth];
    store(bits,
          (lost ? L::all(double{kSwamped}) : D{}) + (over ? L::all(double{kOverflowed}) : D{}));
    for (int64_t l = 0; l < lanes_; ++l) to[l] = static_cast<uint8_t>(bits[l]);
  }

  const EventArgs& args_;
  const Accumulator acc_;
  const int64_t lane_, lanes_;
  const Format free_sum_, free_product_, free_outer_;
};

template <class V>
EventCounts count_events(const EventBlock& block) {
  using D = typename V::D;
  constexpr int kWidth = V::kWidth;
  const EventArgs& args = *block.args;
  EventCounts counts{};
  double columns[kEventDepth * kWidth];
  for (int64_t lane = 0; lane < block.lanes; lane += kWidth) {
    const int64_t lanes = std::min<int64_t>(kWidth, block.lanes - lane);
    const EventLoop<V> loop(args, block.lane + lane, lanes);
    EventSums<D> sums[kEventRows];
    for (int64_t from = 0; from < args.k; from += kEventDepth) {
      const int64_t to = std::min(args.k, from + kEventDepth);
      // Lanes past the edge hold zeros, whose products count nowhere.
      std::fill(columns, columns + (to - from) * kWidth, 0.0);
      for (int64_t k = from; k < to; ++k) {
        const float* b = args.b + k * args.b_k + (block.lane + lane) * args.b_col;
        for (int64_t l = 0; l < lanes; ++l) columns[(k - from) * kWidth + l] = b[l * args.b_col];
      }
      for (int64_t r = 0; r < block.rows; ++r) {
        loop.run(sums[r], block.row + r, columns, from, to);
      }
    }
    for (int64_t r = 0; r < block.rows; ++r) loop.finish(sums[r], block.row + r, &counts);
  }
  return counts;
}

}  // namespace
}  // namespace lpk
