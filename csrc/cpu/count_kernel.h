// Rounding that counts: the loops and rules of quantize_kernel.h, each rule followed by a look at
// what it did. Overflow is seen by rounding once more without the format's end, and only in vectors
// that have a magnitude beyond it.
//
// The histogram goes one element at a time, over a piece that the rounding then reads in a cache:
// an increment is a load and a store, of which there is no vector form that is faster.
#pragma once

#include "affine_kernel.h"
#include "count.h"
#include "quantize_kernel.h"

namespace lpk {
namespace {

// Adds 1 where the condition holds. A mask of AVX-512 costs no vector that way.
template <class V>
LPK_HD void tally_zeros(typename V::U* count, typename V::U x) {
#if defined(__AVX512F__)
  if constexpr (V::kWidth == 16) {
    const __mmask16 zero = _mm512_testn_epi32_mask((__m512i)x, (__m512i)x);
    *count = (typename V::U)_mm512_mask_add_epi32((__m512i)*count, zero, (__m512i)*count,
                                                  _mm512_set1_epi32(1));
    return;
  }
#endif
  *count += x == 0 ? typename V::U{} + 1 : typename V::U{};
}

// How many of the vector's magnitudes are beyond the format's largest once rounded without end, and
// finite. Out of line: seldom called, and the loops need their registers.
template <class V, class Rule>
struct Endless {
  Rule rule;
  uint32_t max;

  Endless(const Rule& given, const Format&) : rule(given), max(given.f.max) {
    rule.f.max = kInfinityWord - 1;
    rule.f.beyond = kInfinityWord;
    rule.f.beyond_sign = kSignWord;
  }
  LPK_HD auto beyond(typename V::U x, typename V::U draw) const {
    return above<V>(rule(x, draw) & ~kSignWord, typename V::U{} + max);
  }
};

template <class V>
struct Endless<V, NearestRule<V>> {
  uint32_t last, max;

  Endless(const NearestRule<V>& given, const Format&) : last(given.last), max(given.last) {}
  LPK_HD auto beyond(typename V::U x, typename V::U) const {
    return above<V>(x & ~kSignWord, typename V::U{} + last);
  }
};

// What the vectors of one loop have seen: in registers, added to the piece's when the loop ends.
template <class V>
struct Seen {
  using U = typename V::U;
  U vanished{}, zeros{}, overflowed{}, nonfinite{};

  void add_to(Tally* tally) const {
    // `vanished` has all results that are zero.
    tally->counts[kUnderflows] += sum(vanished) - sum(zeros);
    tally->counts[kZeros] += sum(zeros);
    tally->counts[kOverflows] += sum(overflowed);
    tally->counts[kNonfinite] += sum(nonfinite);
  }

 private:
  static int64_t sum(U lanes) {
    uint32_t each[V::kWidth];
    store(each, lanes);
    int64_t total = 0;
    for (const uint32_t one : each) total += one;
    return total;
  }
};

// A rule that counts. Every copy starts at nothing and hands over what it has seen when it goes, so
// a loop over a copy of its own keeps the counts in registers.
template <class V, class Rule>
struct CountingRule {
  using U = typename V::U;

  Rule rule;
  Endless<V, Rule> endless;
  Tally* tally;
  mutable Seen<V> seen;

  CountingRule(const Rule& r, const Format& f, Tally* t) : rule(r), endless(r, f), tally(t) {}
  CountingRule(const CountingRule& from)
      : rule(from.rule), endless(from.endless), tally(from.tally) {}
  CountingRule& operator=(const CountingRule&) = delete;
  ~CountingRule() { seen.add_to(tally); }

  LPK_HD U operator()(U x, U draw) const {
    const U a = x & ~kSignWord;
    const U r = rule(x, draw);
    tally_zeros<V>(&seen.zeros, a);
    tally_zeros<V>(&seen.vanished, r & ~kSignWord);
    if (!none_above<V>(a, endless.max)) look(x, a, draw);
    return r;
  }

 private:
  LPK_HD void look(U x, U a, U draw) const {
    const U one = U{} + 1;
    const auto strange = above<V>(a, U{} + (kInfinityWord - 1));
    const U over = endless.beyond(x, draw) ? one : U{};
    seen.nonfinite += strange ? one : U{};
    seen.overflowed += strange ? U{} : over;
  }
};

// Exponent fields of words.
inline void count_bins(const uint32_t* x, int64_t count, Tally* tally) {
  constexpr int kMany = Tally::kHistograms;
  int64_t i = 0;
  for (; i + kMany <= count; i += kMany) {
#pragma GCC unroll 4
    for (int h = 0; h < kMany; ++h) ++tally->bins[h][x[i + h] >> 23 & 0xff];
  }
  for (; i < count; ++i) ++tally->bins[0][x[i] >> 23 & 0xff];
}

template <class V>
void count_job_bins(const ElementBlock& job, Tally* tally) {
  if (job.x_type == ElementType::kFloat32)
    return count_bins(static_cast<const uint32_t*>(job.x), job.count, tally);
  alignas(64) uint32_t words[kWordSpan];
  for (int64_t i = 0; i < job.count; i += kWordSpan) {
    const int64_t n = std::min(kWordSpan, job.count - i);
    widen_span<V>(job, i, n, words);
    count_bins(words, n, tally);
  }
}

// Elements `begin` .. `begin + count` of a job.
inline ElementBlock part_of(const ElementBlock& job, int64_t begin, int64_t count) {
  ElementBlock part = job;
  part.x = static_cast<const char*>(job.x) + begin * element_bytes(job.x_type);
  part.y = static_cast<char*>(job.y) + begin * element_bytes(job.y_type);
  part.count = count;
  part.index = job.index + static_cast<uint64_t>(begin);
  return part;
}

// Runs the loops of quantize_kernel.h on parts of the job, with a rule that counts.
template <class V>
struct CountingRun {
  Tally* tally;
  bool written;

  template <class Rule, class Draws, int kPerWord>
  void run(const ElementBlock& job, const Rule& rule) const {
    const CountingRule<V, Rule> counting(rule, number_format(job.format), tally);
    constexpr int64_t kStep = kPerWord * V::kWidth;
    // Results that nobody wants stay in the first cache; streamed ones are not cut.
    const int64_t length = written ? job.count : kWordSpan;
    alignas(64) uint32_t unwanted[kWordSpan];
    for (int64_t i = 0; i < job.count; i += length) {
      ElementBlock part = part_of(job, i, std::min(length, job.count - i));
      if (!written) part.y = unwanted;
      if (tally->histogram) count_job_bins<V>(part, tally);
      run_elements<V, CountingRule<V, Rule>, Draws, kPerWord>(part, counting);
    }
    // The last group was filled with zeros.
    tally->counts[kZeros] -= (kStep - job.count % kStep) % kStep;
  }
};

template <class V>
bool count_elements(const ElementBlock& job, Tally* tally) {
  ElementBlock seen = job;
  if (job.y == nullptr) {
    seen.y_type = ElementType::kFloat32;
    seen.streamed = false;
  }
  return run_format<V>(seen, CountingRun<V>{tally, job.y != nullptr});
}

// Values that rounding took as doubles.
template <class V>
void count_span(const CountSpan& span, Tally* tally) {
  using D = typename V::D;
  using I = typename V::I;
  using L = Lanes<D>;
  const RoundBlock& b = span.block;
  const Format f = number_format(b.format), endless = unbounded(f);
  const Rounding mode = static_cast<Rounding>(b.rounding);
  const double low = low_end(f), high = f.max;
  const ElementDraws<V> draws(b);
  bool outside = false;
  for (int64_t i = 0; i < b.count; ++i) outside |= span.scaled[i] > high || span.scaled[i] < low;
  I vanished{}, zeros{}, overflowed{}, nonfinite{};
  const I none{}, one = none + 1;
  for (int64_t i = 0; i < b.count; i += V::kWidth) {
    const int64_t n = std::min<int64_t>(V::kWidth, b.count - i);
    const D x = load_some<V>(span.x + i, n), y = load_some<V>(span.y + i, n);
    const auto finite = L::value(L::bits(x) & ~kSignBit) < HUGE_VAL;
    auto lost = finite & (x != 0.0) & (y == 0.0);
    if (outside) {
      D threshold{};
      if (mode == Rounding::kStochastic) threshold = draws.thresholds(b.index + i);
      const D r = round_to<D>(load_some<V>(span.scaled + i, n), endless, mode, threshold);
      const auto over = finite & beyond_ends<D>(r, low, high);
      overflowed += over ? one : none;
      lost = lost & !over;
    }
    vanished += lost ? one : none;
    zeros += x == 0.0 ? one : none;
    nonfinite += finite ? none : one;
  }
  const auto add = [&](Count place, I lanes) {
    int64_t each[V::kWidth];
    store(each, lanes);
    for (const int64_t count : each) tally->counts[place] += count;
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
    const double low = span.low[span.each ? i : 0], high = span.high[span.each ? i : 0];
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
