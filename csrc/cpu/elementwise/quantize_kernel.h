// y[i] = round(x[i]) for float32, float16 and bfloat16 in and out, by arithmetic on the bits of
// float32: no value is widened to double.
//
// Takes tables, and every float format but those that WordFormat leaves out; the caller goes
// through doubles there. float32 is rounded where it lies, other types by way of spans of float32.
#pragma once

#include <algorithm>

#include "cpu/draws/draws.h"
#include "table_rule.h"
#include "word_rules.h"

namespace lpk {
namespace {

// Elements that a word's draws and a vector of words make a group of, at most.
constexpr int64_t kGroup = 64;
constexpr int64_t kWordSpan = 1024;

// Streamed results are made on so many pages of 4 KiB in turn, while the next ones are fetched: one
// stream alone leaves the memory idle at the start of every page. Vectors of a whole cache line
// take turns one by one. Shorter ones stay on a page for eight lines: Zen 3 combines the stores of
// few lines at a time, and writes those that are pushed out half full at a fifth of the speed.
constexpr int64_t kPages = 4;
constexpr int64_t kPageWords = 1024;
template <class V>
constexpr int64_t kTurnWords = V::kWidth < 16 ? 128 : 16;

// Whole groups of kPerWord vectors. Streamed: y is aligned to the size of a vector; kMayStream:
// whether results ever are.
template <class V, class Rule, class Draws, int kPerWord, bool kMayStream = true>
__attribute__((noinline)) LPK_NOCLONE void round_groups(const uint32_t* x, uint32_t* y,
                                                        int64_t count, const Rule& shared,
                                                        Draws draws, uint64_t index,
                                                        bool streamed) {
  constexpr int64_t kStep = kPerWord * V::kWidth, kTurn = std::max(kStep, kTurnWords<V>);
  const Rule rule = shared;
  const auto round_vector = [&](int64_t at, int v) __attribute__((always_inline)) {
    return rule(load<typename V::U>(x + at + v * V::kWidth), draws.draws(v));
  };
  int64_t i = 0;
  for (; kMayStream && streamed && i + kPages * kPageWords <= count; i += kPages * kPageWords) {
    for (int64_t at = i; at < i + kPageWords; at += kTurn) {
#pragma GCC unroll 4
      for (int64_t page = 0; page < kPages; ++page) {
        const int64_t line = at + page * kPageWords;
        for (int64_t group = line; group < line + kTurn; group += kStep) {
          draws.fetch(index + static_cast<uint64_t>(group));
#pragma GCC unroll 4
          for (int v = 0; v < kPerWord; ++v) {
            __builtin_prefetch(x + group + v * V::kWidth + kPages * kPageWords);
            stream(y + group + v * V::kWidth, round_vector(group, v));
          }
        }
      }
    }
  }
  for (; i < count; i += kStep) {
    draws.fetch(index + static_cast<uint64_t>(i));
#pragma GCC unroll 4
    for (int v = 0; v < kPerWord; ++v) store(y + i + v * V::kWidth, round_vector(i, v));
  }
}

template <class V, class Rule, class Draws, int kPerWord, bool kMayStream = true>
void round_words(const uint32_t* x, uint32_t* y, int64_t count, const Rule& rule,
                 const Draws& draws, uint64_t index, bool streamed) {
  const auto run = round_groups<V, Rule, Draws, kPerWord, kMayStream>;
  const int64_t whole = count - count % (kPerWord * V::kWidth);
  run(x, y, whole, rule, draws, index, streamed);
  if (whole == count) return;
  uint32_t last[kGroup] = {};
  std::memcpy(last, x + whole, (count - whole) * sizeof *last);
  run(last, last, kPerWord * V::kWidth, rule, draws, index + static_cast<uint64_t>(whole), false);
  std::memcpy(y + whole, last, (count - whole) * sizeof *last);
}

// A span of at most kWordSpan elements of another type as float32, and back; the tail is padded.
template <class V, ElementType kType>
void widen_words(const void* from, int64_t count, uint32_t* to) {
  using H = typename V::H;
  const auto* x = static_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < count; i += V::kWidth) {
    H h{};
    const int64_t n = std::min<int64_t>(V::kWidth, count - i);
    const bool whole = V::kWidth == 1 || n == V::kWidth;
    whole ? void(h = load<H>(x + i)) : void(std::memcpy(&h, x + i, n * sizeof *x));
    store(to + i, words_of<V, kType>(h));
  }
}

template <class V, ElementType kType>
void narrow_words(const uint32_t* from, int64_t count, void* to, bool streamed) {
  using H = typename V::H;
  auto* y = static_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; i += V::kWidth) {
    const H h = halves_of<V, kType>(load<typename V::U>(from + i));
    const int64_t n = std::min<int64_t>(V::kWidth, count - i);
    if (V::kWidth > 1 && n < V::kWidth) {
      std::memcpy(y + i, &h, n * sizeof *y);
    } else if (streamed) {
      stream(y + i, h);
    } else {
      store(y + i, h);
    }
  }
}

// These two are not compiled in place, for every rule.
template <class V>
__attribute__((noinline)) void widen_span(const ElementBlock& job, int64_t begin, int64_t count,
                                          uint32_t* to) {
  const char* x = static_cast<const char*>(job.x) + begin * element_bytes(job.x_type);
  switch (job.x_type) {
    case ElementType::kFloat16:
      return widen_words<V, ElementType::kFloat16>(x, count, to);
    case ElementType::kBfloat16:
      return widen_words<V, ElementType::kBfloat16>(x, count, to);
    default:
      std::memcpy(to, x, count * sizeof *to);
  }
}

template <class V>
__attribute__((noinline)) void narrow_span(const uint32_t* from, const ElementBlock& job,
                                           int64_t begin, int64_t count, bool streamed) {
  char* y = static_cast<char*>(job.y) + begin * element_bytes(job.y_type);
  switch (job.y_type) {
    case ElementType::kFloat16:
      return narrow_words<V, ElementType::kFloat16>(from, count, y, streamed);
    case ElementType::kBfloat16:
      return narrow_words<V, ElementType::kBfloat16>(from, count, y, streamed);
    default:
      std::memcpy(y, from, count * sizeof *from);
  }
}

template <class V, class Rule, class Draws, int kPerWord>
void run_elements(const ElementBlock& job, const Rule& rule) {
  const Draws draws(job);
  const bool to_float = job.y_type == ElementType::kFloat32;
  const int64_t vector_bytes = V::kWidth * element_bytes(job.y_type);
  const bool streamed =
      job.streamed &&
      reinterpret_cast<uintptr_t>(job.y) % static_cast<uintptr_t>(vector_bytes) == 0;
  const auto run = round_words<V, Rule, Draws, kPerWord>;
  if (to_float && job.x_type == ElementType::kFloat32) {
    run(static_cast<const uint32_t*>(job.x), static_cast<uint32_t*>(job.y), job.count, rule, draws,
        job.index, streamed);
  } else {
    alignas(64) uint32_t span[kWordSpan];
    for (int64_t i = 0; i < job.count; i += kWordSpan) {
      const int64_t n = std::min(kWordSpan, job.count - i);
      widen_span<V>(job, i, n, span);
      uint32_t* to = to_float ? static_cast<uint32_t*>(job.y) + i : span;
      run(span, to, n, rule, draws, job.index + static_cast<uint64_t>(i), to_float && streamed);
      if (!to_float) narrow_span<V>(span, job, i, n, streamed);
    }
  }
  if (streamed) Isa::end_stream();
}

// The loop of a rule that rounds and does nothing else.
template <class V>
struct RoundingRun {
  template <class Rule, class Draws, int kPerWord>
  void run(const ElementBlock& job, const Rule& rule) const {
    run_elements<V, Rule, Draws, kPerWord>(job, rule);
  }
};

template <class V, bool kSmall, class Run>
void run_stochastic(const ElementBlock& job, const Format& f, const Run& by) {
  using Rule = WordRule<V, Rounding::kStochastic, kSmall>;
  const Rule rule(f, job.random_bits);
  switch (draw_layout(job.random_bits).per_word_log2) {
    case 0:
      return by.template run<Rule, WordDraws<V, 1>, 1>(job, rule);
    case 1:
      return by.template run<Rule, WordDraws<V, 2>, 2>(job, rule);
    default:
      return by.template run<Rule, WordDraws<V, 4>, 4>(job, rule);
  }
}

template <class V, bool kSmall, class Run>
void run_mode(const ElementBlock& job, const Format& f, const Run& by) {
  if (job.rounding == Rounding::kNearestEven && NearestRule<V>::fits(f))
    return by.template run<NearestRule<V>, WithoutDraws<V>, 1>(job, NearestRule<V>(f, 0));
  for_mode(job.rounding, [&](auto mode) {
    if constexpr (mode == Rounding::kStochastic) {
      run_stochastic<V, kSmall>(job, f, by);
    } else {
      using Rule = WordRule<V, mode, kSmall>;
      by.template run<Rule, WithoutDraws<V>, 1>(job, Rule(f, 0));
    }
  });
}

// False, and nothing done, where this kernel is not exact.
template <class V, class Run>
bool run_format(const ElementBlock& job, const Run& by) {
  const Format f = number_format(job.format);
  const ElementType wide = ElementType::kFloat64;
  if (job.x_type == wide || job.y_type == wide || !WordFormat::fits(f)) return false;
  WordFormat(f).evenly_spaced ? run_mode<V, false>(job, f, by) : run_mode<V, true>(job, f, by);
  return true;
}

// False, and nothing done, for a format that is no table, for draws and for double.
template <class V>
bool round_to_table(const ElementBlock& job) {
  const Format f = number_format(job.format);
  const Rounding mode = job.rounding;
  const ElementType wide = ElementType::kFloat64;
  if (f.kind != Kind::kTable || mode == Rounding::kStochastic) return false;
  if (job.x_type == wide || job.y_type == wide) return false;
  const TableCells cells = table_cells(*f.table, mode);
  if (cells.count > 0) {
    run_elements<V, TableCellRule<V>, WithoutDraws<V>, 1>(job, {cells});
  } else {
    run_elements<V, TableRule<V>, WithoutDraws<V>, 1>(job, {word_ladder(*f.table, mode)});
  }
  return true;
}

template <class V>
bool round_elements(const ElementBlock& job) {
  if (kind_of(job.format) == Kind::kTable) return round_to_table<V>(job);
  return run_format<V>(job, RoundingRun<V>{});
}

}  // namespace
}  // namespace lpk
