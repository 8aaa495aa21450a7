// The range of a span of doubles, and values coded on a line through it: every step one float64
// operation.
#pragma once

#include <algorithm>

#include "common/affine.h"
#include "cpu/draws/draws.h"

namespace lpk {
namespace {

// The parts of a span: whole vectors, and the elements left over, with zeros behind them.
template <class V>
LPK_HD typename V::D load_some(const double* p, int64_t n) {
  if (n == V::kWidth) return load<typename V::D>(p);
  typename V::D x{};
  std::memcpy(&x, p, static_cast<size_t>(n) * sizeof *p);
  return x;
}

template <class V>
LPK_HD void store_some(double* p, typename V::D x, int64_t n) {
  if (n == V::kWidth) {
    store(p, x);
  } else {
    std::memcpy(p, &x, static_cast<size_t>(n) * sizeof *p);
  }
}

// float32 to doubles and back, NaN canonical: in vectors, and the elements left over one by one.
template <class V>
void widen_floats(const float* x, int64_t count, double* to) {
  int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) store(to + i, load_floats<V>(x + i));
  for (; i < count; ++i) to[i] = x[i];
}

template <class V>
void narrow_floats(const double* x, int64_t count, float* to) {
  using D = typename V::D;
  using L = Lanes<D>;
  const D nan = L::value(typename L::Bits{} + 0x7ff8000000000000);
  int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) {
    const D v = load<D>(x + i);
    store_floats<V>(to + i, v == v ? v : nan);
  }
  for (; i < count; ++i) to[i] = canonical_float(x[i]);
}

template <class V>
LPK_HD void widen_ends(typename V::D x, typename V::D& lo, typename V::D& hi) {
  const auto finite = magnitude<typename V::D>(x) < HUGE_VAL;
  lo = (finite & (x < lo)) ? x : lo;
  hi = (finite & (x > hi)) ? x : hi;
}

template <class V>
bool widen_range(const double* x, int64_t count, bool by_element, double* lo, double* hi) {
  using D = typename V::D;
  using L = Lanes<D>;
  // x - x is 0 or NaN: its sum says whether all were finite.
  D strange{}, all_lo = L::all(*lo), all_hi = L::all(*hi);
  for (int64_t i = 0; i < count; i += V::kWidth) {
    const int64_t n = std::min<int64_t>(V::kWidth, count - i);
    D v = load_some<V>(x + i, n);
    if (by_element) {
      D low = load_some<V>(lo + i, n), high = load_some<V>(hi + i, n);
      widen_ends<V>(v, low, high);
      store_some<V>(lo + i, low, n);
      store_some<V>(hi + i, high, n);
    } else {
      // Missing lanes repeat the first value.
      if (n < V::kWidth) {
        double padded[V::kWidth];
        for (int l = 0; l < V::kWidth; ++l) padded[l] = x[i + (l < n ? l : 0)];
        v = load<D>(padded);
      }
      widen_ends<V>(v, all_lo, all_hi);
    }
    strange = strange + (v - v);
  }
  double los[V::kWidth], his[V::kWidth], strangers[V::kWidth], sum = 0;
  store(los, all_lo);
  store(his, all_hi);
  store(strangers, strange);
  for (int l = 0; l < V::kWidth; ++l) {
    if (!by_element) {
      *lo = los[l] < *lo ? los[l] : *lo;
      *hi = his[l] > *hi ? his[l] : *hi;
    }
    sum += strangers[l];
  }
  return sum == 0;
}

template <class V, bool kEach>
void affine_elements(const AffineSpan& job) {
  using D = typename V::D;
  using L = Lanes<D>;
  const RoundBlock& b = job.block;
  const Format integers = number_format(b.format);
  const Rounding mode = b.rounding;
  const ElementDraws<V> draws(b);
  const auto parameter = [](const double* p, int64_t i, int64_t n) {
    if constexpr (kEach) return load_some<V>(p + i, n);
    return L::all(*p);
  };
  const D first = L::all(job.first), last = L::all(job.last);
  for (int64_t i = 0; i < b.count; i += V::kWidth) {
    const int64_t n = std::min<int64_t>(V::kWidth, b.count - i);
    const AffineLine<D> line{parameter(job.lo, i, n), parameter(job.hi, i, n),
                             parameter(job.step, i, n), parameter(job.top, i, n)};
    const D u = affine_position<D>(load_some<V>(b.x + i, n), line, first, last);
    D code;
    if (mode == Rounding::kNearestEven) {
      // Codes have at most 17 bits.
      code = (u + 0x1.8p52) - 0x1.8p52;
    } else {
      D threshold{};
      if (mode == Rounding::kStochastic) threshold = draws.thresholds(b.index + i);
      code = round_to_fixed<D>(u, integers, mode, threshold);
    }
    store_some<V>(b.y + i, affine_value<D>(code, line), n);
  }
}

template <class V>
void affine_span(const AffineSpan& job) {
  job.by_element ? affine_elements<V, true>(job) : affine_elements<V, false>(job);
}

}  // namespace
}  // namespace lpk
