// Rounding that counts: the loops and rules of quantize_kernel.h, each rule followed by a look at
// its results. Overflow is seen by rounding once more without the format's end, and only in vectors
// that have a magnitude beyond it.
//
// The histogram is a pass of its own (exponent_bins.h) over a piece that the rounding then reads in
// a cache.
#pragma once

#include "affine_kernel.h"
#include "count.h"
#include "exponent_bins.h"
#include "nearest_counts.h"

namespace lpk {
namespace {

template <class V>
int64_t sum_of_lanes(typename V::U counts) {
  if constexpr (V::kWidth == 1) {
    return counts;
  } else {
    int64_t sum = 0;
    for (int i = 0; i < V::kWidth; ++i) sum += counts[i];
    return sum;
  }
}

// Which of a vector's finite magnitudes are beyond the format's largest once rounded without end.
template <class V, class Rule>
struct Endless {
  static constexpr bool kKnown = false, kInside = false;
  Rule rule;
  uint32_t max;

  explicit Endless(const Rule& given) : rule(given), max(given.f.max) {
    rule.f.max = kInfinityWord - 1;
    rule.f.beyond = kInfinityWord;
    rule.f.beyond_sign = kSignWord;
  }
  LPK_HD uint32_t beyond(typename V::U x, typename V::U draw) const {
    return lanes_above<V>(rule(x, draw) & ~kSignWord, max);
  }
};

// To nearest, all values above a known magnitude overflow. kInside: the rule has a shorter form
// where no value overflows.
template <bool kShorter>
struct KnownEnd {
  static constexpr bool kKnown = true, kInside = kShorter;
  uint32_t max;
};

template <class V>
struct Endless<V, NearestRule<V>> : KnownEnd<false> {
  explicit Endless(const NearestRule<V>& given) : KnownEnd<false>{given.last} {}
};

template <class V, bool kSmall>
struct Endless<V, WordRule<V, Rounding::kNearestAway, kSmall>> : KnownEnd<true> {
  explicit Endless(const WordRule<V, Rounding::kNearestAway, kSmall>& given)
      : KnownEnd<true>{given.f.max + given.half - given.one} {}
};

// Draws that a rule rounds by an addition alone, from a magnitude on: such vectors, which have no
// zeros, are not looked at twice.
template <class Rule>
struct PlainFrom {
  static constexpr bool kExists = false;
  static uint32_t least(const Rule&, uint32_t least) { return least; }
};
template <class V, bool kSmall>
struct PlainFrom<WordRule<V, Rounding::kStochastic, kSmall>> {
  static constexpr bool kExists = true;
  static uint32_t least(const WordRule<V, Rounding::kStochastic, kSmall>& rule, uint32_t least) {
    return kSmall ? rule.f.floor : least;
  }
};

// A rule that counts. Zeros are counted by the lane without a branch, because any vector may have
// some; overflow is rare. Every copy starts with counts of 0 and hands them over when it is
// destroyed, so a loop over a copy of its own keeps the counts in registers.
template <class V, class Rule>
struct CountingRule {
  using U = typename V::U;

  Rule rule;
  Endless<V, Rule> endless;
  uint32_t least;  // the magnitude from which draws are plain, where a rule has plain ones
  Tally* tally;
  mutable U zeros{}, zero_results{};
  mutable int64_t overflows = 0, nonfinite = 0;

  CountingRule(const Rule& r, const WordFormat& f, Tally* t)
      : rule(r),
        endless(r),
        least(PlainFrom<Rule>::least(r, bits_of_float(std::ldexp(f.magic, -23)))),
        tally(t) {}
  CountingRule(const CountingRule& from)
      : rule(from.rule), endless(from.endless), least(from.least), tally(from.tally) {}
  CountingRule& operator=(const CountingRule&) = delete;
  ~CountingRule() {
    const int64_t before = sum_of_lanes<V>(zeros);
    tally->counts[kUnderflows] += sum_of_lanes<V>(zero_results) - before;
    tally->counts[kZeros] += before;
    tally->counts[kOverflows] += overflows;
    tally->counts[kNonfinite] += nonfinite;
  }

  LPK_HD U operator()(U x, U draw) const {
    const U a = x & ~kSignWord;
    if constexpr (PlainFrom<Rule>::kExists) {
      if (all_inside<V>(a, least, endless.max)) return rule.plain(x, draw);
    }
    const uint32_t large = lanes_above<V>(a, endless.max);
    const U r = rounded(x, draw, large != 0);
    add_zero_lanes<V>(r, zero_results);
    add_zero_lanes<V>(x, zeros);
    if (large != 0) look(x, draw, large);
    return r;
  }

 private:
  LPK_HD U rounded(U x, U draw, bool large) const {
    if constexpr (PlainFrom<Rule>::kExists) return rule.general(x, draw);
    if constexpr (Endless<V, Rule>::kInside) return large ? rule(x, draw) : rule.inside(x, draw);
    return rule(x, draw);
  }
  LPK_HD void look(U x, U draw, uint32_t large) const {
    if constexpr (Endless<V, Rule>::kKnown) {
      const uint32_t strange = lanes_above<V>(x & ~kSignWord, kInfinityWord - 1);
      nonfinite += __builtin_popcount(strange);
      overflows += __builtin_popcount(large & ~strange);
    } else {
      look_again(x, draw);
    }
  }
  // Out of line: the loops need their registers.
  __attribute__((noinline)) void look_again(U x, U draw) const {
    const uint32_t strange = lanes_above<V>(x & ~kSignWord, kInfinityWord - 1);
    tally->counts[kNonfinite] += __builtin_popcount(strange);
    tally->counts[kOverflows] += __builtin_popcount(endless.beyond(x, draw) & ~strange);
  }
};

// Rounds whole groups to see what happens to them; it writes nothing.
template <class V, class Rule, class Draws, int kPerWord>
__attribute__((noinline)) LPK_NOCLONE void look_at_groups(const uint32_t* x, int64_t count,
                                                          const Rule& given, Draws draws,
                                                          uint64_t index) {
  constexpr int64_t kStep = kPerWord * V::kWidth, kTurn = std::max(kStep, kTurnWords<V>);
  const Rule rule = given;
  const auto look = [&](int64_t at) __attribute__((always_inline)) {
    draws.fetch(index + static_cast<uint64_t>(at));
#pragma GCC unroll 4
    for (int v = 0; v < kPerWord; ++v)
      rule(load<typename V::U>(x + at + v * V::kWidth), draws.draws(v));
  };
  int64_t i = 0;
  for (; i + kTurnedWords <= count; i += kTurnedWords) {
    for (int64_t at = i; at < i + kPageWords; at += kTurn) {
#pragma GCC unroll 4
      for (int64_t page = 0; page < kPages; ++page) {
        const int64_t line = at + page * kPageWords;
        for (int64_t group = line; group < line + kTurn; group += kStep) {
          for (int v = 0; v < kPerWord; ++v)
            __builtin_prefetch(x + group + v * V::kWidth + kTurnedWords);
          look(group);
        }
      }
    }
  }
  for (; i < count; i += kStep) look(i);
}

template <class V, class Rule, class Draws, int kPerWord>
void look_at_words(const uint32_t* x, int64_t count, const Rule& rule, const Draws& draws,
                   uint64_t index) {
  const auto run = look_at_groups<V, Rule, Draws, kPerWord>;
  const int64_t whole = count - count % (kPerWord * V::kWidth);
  run(x, whole, rule, draws, index);
  if (whole == count) return;
  uint32_t last[kGroup] = {};
  std::memcpy(last, x + whole, (count - whole) * sizeof *last);
  run(last, kPerWord * V::kWidth, rule, draws, index + static_cast<uint64_t>(whole));
}

// Runs the loops of quantize_kernel.h with a rule that counts, or looks only.
template <class V>
struct CountingRun {
  Tally* tally;

  template <class Rule, class Draws, int kPerWord>
  void run(const ElementBlock& job, const Rule& rule) const {
    const WordFormat format(number_format(job.format));
    const CountingRule<V, Rule> counting(rule, format, tally);
    constexpr int64_t kStep = kPerWord * V::kWidth;
    if (job.y == nullptr) {
      look<CountingRule<V, Rule>, Draws, kPerWord>(job, counting);
    } else {
      if (tally->histogram) fill_histogram(job);
      run_elements<V, CountingRule<V, Rule>, Draws, kPerWord>(job, counting);
    }
    // The last group was filled with zeros.
    tally->counts[kZeros] -= (kStep - job.count % kStep) % kStep;
  }

 private:
  // Not compiled in place, for every rule.
  __attribute__((noinline)) void fill_histogram(const ElementBlock& job) const {
    ExponentBins<V> bins(tally);
    for_words<V>(job,
                 [&](const uint32_t* words, int64_t count, int64_t) { bins.add(words, count); });
  }

  template <class Rule, class Draws, int kPerWord>
  void look(const ElementBlock& job, const Rule& rule) const {
    const Draws draws(job);
    const auto look_at = look_at_words<V, Rule, Draws, kPerWord>;
    if (!tally->histogram && job.x_type == ElementType::kFloat32)
      return look_at(static_cast<const uint32_t*>(job.x), job.count, rule, draws, job.index);
    ExponentBins<V> bins(tally);
    for_words<V>(job, [&](const uint32_t* words, int64_t count, int64_t begin) {
      if (tally->histogram) bins.add(words, count);
      look_at(words, count, rule, draws, job.index + static_cast<uint64_t>(begin));
    });
  }
};

template <class V>
bool count_elements(const ElementBlock& job, Tally* tally) {
  const Format f = number_format(job.format);
  const bool to_nearest = static_cast<Rounding>(job.rounding) == Rounding::kNearestEven;
  if (job.y == nullptr && tally->histogram && to_nearest && NearestEnds::fits(f) &&
      job.x_type != ElementType::kFloat64) {
    look_at_nearest<V>(job, NearestEnds(f), tally);
    return true;
  }
  return run_format<V>(job, CountingRun<V>{tally});
}

// Counts values that the rounding took as doubles.
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
      const D scaled = load_some<V>(span.scaled + i, n);
      // A table has no values beyond its ends, so that the value itself is judged.
      const D r = f.kind == Kind::kTable ? scaled : round_to<D>(scaled, endless, mode, threshold);
      // A program's product may be infinite where its value is not.
      const auto over = finite & (L::value(L::bits(scaled) & ~kSignBit) < HUGE_VAL) &
                        beyond_ends<D>(r, low, high);
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
