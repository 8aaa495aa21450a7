// What a rounding did, by comparing values with its results.
#pragma once

#include "affine_kernel.h"
#include "count.h"
#include "quantize_kernel.h"

namespace lpk {
namespace {

// The exponent fields of words; neighbours go to different histograms.
template <class V>
void count_fields(const uint32_t* x, int64_t count, Tally* tally) {
  constexpr int64_t kMany = Tally::kHistograms;
  int64_t i = 0;
  for (; i + kMany <= count; i += kMany) {
#pragma GCC unroll 8
    for (int h = 0; h < kMany; ++h) ++tally->bins[h][x[i + h] >> 23 & (kBins - 1)];
  }
  for (; i < count; ++i) ++tally->bins[0][x[i] >> 23 & (kBins - 1)];
}

template <class V>
bool count_words(const uint32_t* x, const uint32_t* y, int64_t count, uint32_t inside,
                 Tally* tally) {
  using U = typename V::U;
  U zeros{}, results{}, most{};
  int64_t i = 0;
  for (; i < count; i += V::kWidth) {
    // The next span, where the words lie in the tensor itself.
    __builtin_prefetch(x + i + 4 * kPageWords);
    const U a = load<U>(x + i);
    const U magnitude = a & ~kSignWord;
    most = magnitude > most ? magnitude : most;
    add_zero_lanes<V>(a, zeros);
    add_zero_lanes<V>(load<U>(y + i), results);
  }
  if (lanes_above<V>(most, inside) != 0) return false;
  int64_t before = 0, after = 0;
  for (int lane = 0; lane < V::kWidth; ++lane) {
    before += lane_of<V>(zeros, lane);
    after += lane_of<V>(results, lane);
  }
  tally->counts[kUnderflows] += after - before;
  tally->counts[kZeros] += before - (i - count);
  if (tally->histogram) count_fields<V>(x, count, tally);
  return true;
}

template <class V>
void write_words(const uint32_t* words, const ElementBlock& job, int64_t begin, int64_t count) {
  const int64_t bytes = V::kWidth * element_bytes(job.y_type);
  const bool streamed = job.streamed && reinterpret_cast<uintptr_t>(job.y) % bytes == 0;
  if (!streamed || job.y_type != ElementType::kFloat32) {
    narrow_span<V>(words, job, begin, count, streamed);
  } else {
    auto* y = static_cast<uint32_t*>(job.y) + begin;
    const int64_t whole = count - count % V::kWidth;
    for (int64_t i = 0; i < whole; i += V::kWidth) stream(y + i, load<typename V::U>(words + i));
    std::memcpy(y + whole, words + whole, (count - whole) * sizeof *y);
  }
  if (streamed) Isa::end_stream();
}

// Counts values that the rounding took as doubles.
template <class V>
void count_span(const CountSpan& span, Tally* tally) {
  using D = typename V::D;
  using I = typename V::I;
  const RoundBlock& b = span.block;
  const Overflows overflows(number_format(b.format), b.rounding);
  const ElementDraws<V> draws(b);
  bool outside = false;
  for (int64_t i = 0; i < b.count; ++i)
    outside |= span.scaled[i] > overflows.high || span.scaled[i] < overflows.low;
  I vanished{}, zeros{}, overflowed{}, nonfinite{};
  const I none{}, one = none + 1;
  for (int64_t i = 0; i < b.count; i += V::kWidth) {
    const int64_t n = std::min<int64_t>(V::kWidth, b.count - i);
    const D x = load_some<V>(span.x + i, n), y = load_some<V>(span.y + i, n);
    const auto finite = magnitude<D>(x) < HUGE_VAL;
    auto lost = finite & (x != 0.0) & (y == 0.0);
    if (outside) {
      D threshold{};
      if (b.rounding == Rounding::kStochastic) threshold = draws.thresholds(b.index + i);
      const D scaled = load_some<V>(span.scaled + i, n);
      // A program's product may be infinite where its value is not.
      const auto over =
          finite & (magnitude<D>(scaled) < HUGE_VAL) & overflows.among<D>(scaled, threshold);
      overflowed += over ? one : none;
      lost = lost & !over;
    }
    vanished += lost ? one : none;
    zeros += x == 0.0 ? one : none;
    nonfinite += finite ? none : one;
  }
  const auto add = [&](Count place, I lanes) {
    int64_t by_lane[V::kWidth];
    store(by_lane, lanes);
    for (const int64_t count : by_lane) tally->counts[place] += count;
  };
  add(kUnderflows, vanished);
  add(kZeros, zeros);
  add(kOverflows, overflowed);
  add(kNonfinite, nonfinite);
  // The lanes behind the last element hold zeros.
  tally->counts[kZeros] -= (V::kWidth - b.count % V::kWidth) % V::kWidth;
  for (int64_t i = 0; tally->histogram && i < b.count; ++i)
    ++tally->bins[i % Tally::kHistograms][exponent_bin(span.x[i])];
}

inline void count_affine(const CountAffine& span, Tally* tally) {
  int64_t vanished = 0, zeros = 0, overflowed = 0, nonfinite = 0;
  for (int64_t i = 0; i < span.count; ++i) {
    const double x = span.x[i];
    const double low = span.low[span.by_element ? i : 0], high = span.high[span.by_element ? i : 0];
    const bool finite = std::fabs(x) < HUGE_VAL;
    const bool over = finite & ((x < low) | (x > high));
    overflowed += over;
    vanished += finite & !over & (x != 0.0) & (span.y[i] == 0.0);
    zeros += x == 0.0;
    nonfinite += !finite;
  }
  tally->counts[kOverflows] += overflowed;
  tally->counts[kUnderflows] += vanished;
  tally->counts[kZeros] += zeros;
  tally->counts[kNonfinite] += nonfinite;
  for (int64_t i = 0; tally->histogram && i < span.count; ++i)
    ++tally->bins[i % Tally::kHistograms][exponent_bin(span.x[i])];
}

}  // namespace
}  // namespace lpk
