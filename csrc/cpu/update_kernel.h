// An optimizer's step of a piece of a parameter, span by span: a span of every tensor is decoded
// into the first cache, stepped, rounded, counted and encoded there. What the next span reads is
// fetched while this one is stepped, whose divisions leave the memory idle.
#pragma once

#include <algorithm>

#include "update_rounder.h"
#include "update_states.h"
#include "update_values.h"

namespace lpk {

#if defined(__AVX2__)
template <>
struct SquareRoot<Bits32<8>::F> {
  LPK_HD static Bits32<8>::F of(Bits32<8>::F x) { return (Bits32<8>::F)_mm256_sqrt_ps((__m256)x); }
};
#endif
#if defined(__AVX512F__)
template <>
struct SquareRoot<Bits32<16>::F> {
  LPK_HD static Bits32<16>::F of(Bits32<16>::F x) {
    return (Bits32<16>::F)_mm512_sqrt_ps((__m512)x);
  }
};
#endif

namespace {

// Values of a span: its six words for each leave room in the cache for the lines on their way in.
constexpr int64_t kUpdateSpan = 512;
static_assert(kUpdateSpan % kGroup == 0);

struct UpdateSpan {
  alignas(64) uint32_t gradient[kUpdateSpan];
  alignas(64) uint32_t before[kUpdateSpan];
  alignas(64) uint32_t after[kUpdateSpan];
  alignas(64) uint32_t states[2][kUpdateSpan];
  alignas(64) uint32_t asked[kUpdateSpan];
};

template <class V>
LPK_HD typename V::U canonical_words(typename V::F x) {
  using U = typename V::U;
  const U words = as_words<V>(x);
  return above<V>(words & ~kSignWord, U{} + kInfinityWord) ? U{} + kNanWord : words;
}

// All ones where a comparison holds.
template <class V, class Mask>
LPK_HD typename V::U mask_words(Mask mask) {
  if constexpr (V::kWidth == 1) {
    return mask ? ~0u : 0u;
  } else {
    return (typename V::U)mask;
  }
}

// What a piece needs for each of its spans.
template <class V>
class UpdateRun {
 public:
  using U = typename V::U;
  using F = typename V::F;

  UpdateRun(const UpdatePiece& piece, UpdateCounts* counts)
      : piece_(piece),
        counts_(counts),
        states_(update_options(piece.args->numbers).states()),
        lying_{
            {piece, kGrad}, {piece, kMaster}, {piece, kFirst}, {piece, kSecond}, {piece, kWeight}},
        rounders_{
            {piece, kGrad}, {piece, kMaster}, {piece, kFirst}, {piece, kSecond}, {piece, kWeight}} {
    kind_ = state_kind<V>(*piece.args, kFirst);
    if (states_ == 0) kind_ = StateKind::kOpen;
    if (states_ > 1 && state_kind<V>(*piece.args, kSecond) != kind_) kind_ = StateKind::kOther;
    if (piece.args->scale == nullptr) return;
    scale_ = *piece.args->scale;
    scaled_ = true;
    // The quotient by a power of two is the product by its reciprocal.
    uint32_t bits = bits_of_float(scale_);
    const uint32_t exponent = bits >> 23 & 0xff;
    inverted_ = (bits & 0x7fffff) == 0 && exponent > 0 && exponent < 254;
    if (inverted_) scale_ = 1.0f / scale_;
  }

  void run() {
    void* memory[kPlaces];
    // Elements before the first whose draws begin the word that it has a draw of.
    int64_t lead = piece_.place(piece_.begin) % kMostPerWord;
    for (int64_t i = piece_.begin; i < piece_.end;) {
      const int64_t count = std::min(kUpdateSpan - lead, piece_.end - i);
      for (int place = 0; place < kPlaces; ++place) memory[place] = piece_.at(place, i);
      if (lead == 0 && count % kLanes == 0) {
        run_span(memory, piece_.place(i), count, 0, count);
      } else {
        run_padded(memory, piece_.place(i) - lead, lead, count);
      }
      i += count;
      lead = 0;
    }
    if (piece_.streamed) end_stream();
  }

 private:
  static constexpr int64_t kLanes = V::kWidth;

  static constexpr int64_t kMostPerWord = 4;

  // Through copies, with zeros before the first element and behind the last, up to whole vectors.
  void run_padded(void* const* memory, int64_t index, int64_t lead, int64_t count) {
    alignas(64) char copies[kPlaces][kUpdateSpan * 4] = {};
    void* at[kPlaces];
    for (int place = 0; place < kPlaces; ++place) {
      at[place] = memory[place] == nullptr ? nullptr : copies[place];
      if (at[place] != nullptr)
        std::memcpy(copies[place] + lead * lying_[place].bytes, memory[place],
                    static_cast<size_t>(count * lying_[place].bytes));
    }
    if (piece_.args->working_is_master) at[kWeight] = at[kMaster];
    run_span(at, index, (lead + count + kLanes - 1) / kLanes * kLanes, lead, count);
    for (int place = kMaster; place < kPlaces; ++place) {
      if (at[place] != nullptr)
        std::memcpy(memory[place], static_cast<char*>(at[place]) + lead * lying_[place].bytes,
                    static_cast<size_t>(count * lying_[place].bytes));
    }
  }

  // index: of the first in the whole. count: whole vectors; those from `lead` on are the
  // parameter's, `valid` of them.
  void run_span(void* const* memory, int64_t index, int64_t count, int64_t lead, int64_t valid) {
    const uint32_t* gradient = read_gradient(memory[kGrad], index, count);
    const uint32_t* before = read(kMaster, memory[kMaster], count, span_.before);
    if (kind_ != StateKind::kOther) {
      step_where_they_lie(gradient, before, memory, count);
      finish_span(before, memory, index, count, lead, valid);
      return;
    }
    uint32_t* states[2];
    for (int s = 0; s < states_; ++s) {
      const int place = kFirst + s;
      states[s] = lies_open(place) && !rounders_[place].rounds()
                      ? static_cast<uint32_t*>(memory[place])
                      : span_.states[s];
      if (piece_.constants->begins) {
        std::fill_n(states[s], count, 0u);
      } else if (states[s] == span_.states[s]) {
        load_values<V>(lying_[place], memory[place], count, states[s]);
      }
    }
    step(gradient, before, states, memory, count);
    for (int s = 0; s < states_; ++s) write(kFirst + s, states[s], index, count, memory, false);
    finish_span(before, memory, index, count, lead, valid);
  }

  // From the master after the step on.
  void finish_span(const uint32_t* before, void* const* memory, int64_t index, int64_t count,
                   int64_t lead, int64_t valid) {
    if (rounders_[kMaster].rounds()) rounders_[kMaster](span_.after, count, index);
    std::fill(span_.asked, span_.asked + lead, 0u);
    std::fill(span_.asked + lead + valid, span_.asked + count, 0u);
    count_span(before, count);
    store_values<V>(lying_[kMaster], span_.after, count, memory[kMaster], false);
    if (!piece_.args->working_is_master)
      write(kWeight, span_.after, index, count, memory, piece_.streamed && valid == count);
  }

  bool lies_open(int place) const {
    return lying_[place].lies == static_cast<int>(ElementType::kFloat32);
  }

  const uint32_t* read(int place, const void* memory, int64_t count, uint32_t* span) const {
    if (lies_open(place)) return static_cast<const uint32_t*>(memory);
    load_values<V>(lying_[place], memory, count, span);
    return span;
  }

  void write(int place, uint32_t* x, int64_t index, int64_t count, void* const* memory,
             bool streamed) const {
    if (x == memory[place]) return;
    if (rounders_[place].rounds()) rounders_[place](x, count, index);
    store_values<V>(lying_[place], x, count, memory[place], streamed);
  }

  const uint32_t* read_gradient(const void* memory, int64_t index, int64_t count) {
    const uint32_t* x = read(kGrad, memory, count, span_.gradient);
    if (!scaled_ && !rounders_[kGrad].rounds()) return x;
    uint32_t* g = span_.gradient;
    for (int64_t i = 0; i < count; i += kLanes) {
      F value = as_floats<V>(load<U>(x + i));
      if (inverted_) {
        value = value * scale_;
      } else if (scaled_) {
        value = value / scale_;
      }
      store(g + i, as_words<V>(value));
    }
    if (rounders_[kGrad].rounds()) rounders_[kGrad](g, count, index);
    return g;
  }

  void step(const uint32_t* gradient, const uint32_t* before, uint32_t* const* states,
            void* const* memory, int64_t count) {
    if (piece_.constants->adam) {
      step_by(gradient, before, memory, count,
              [&](const StepConstants& c, int64_t i, F g, F& w) __attribute__((always_inline)) {
                F m = as_floats<V>(load<U>(states[0] + i));
                F v = as_floats<V>(load<U>(states[1] + i));
                adam_step<F>(c, g, w, m, v);
                store(states[0] + i, canonical_words<V>(m));
                store(states[1] + i, canonical_words<V>(v));
              });
    } else {
      const bool has_state = states_ > 0;
      step_by(gradient, before, memory, count,
              [&](const StepConstants& c, int64_t i, F g, F& w) __attribute__((always_inline)) {
                F buffer = F{};
                if (has_state) buffer = as_floats<V>(load<U>(states[0] + i));
                sgd_step<F>(c, g, w, buffer);
                if (has_state) store(states[0] + i, canonical_words<V>(buffer));
              });
    }
  }

  void step_where_they_lie(const uint32_t* gradient, const uint32_t* before, void* const* memory,
                           int64_t count) {
    switch (kind_) {
      case StateKind::kOpen:
        return step_kind<StateKind::kOpen>(gradient, before, memory, count);
      case StateKind::kBrain:
        return step_kind<StateKind::kBrain>(gradient, before, memory, count);
      case StateKind::kTwoBytes:
        return step_kind<StateKind::kTwoBytes>(gradient, before, memory, count);
      default:
        return step_kind<StateKind::kOneByte>(gradient, before, memory, count);
    }
  }

  template <StateKind kKind>
  __attribute__((noinline)) void step_kind(const uint32_t* gradient, const uint32_t* before,
                                           void* const* memory, int64_t count) {
    const UpdateArgs& args = *piece_.args;
    const StateWay<V, kKind> first(args, kFirst), second(args, states_ > 1 ? kSecond : kFirst);
    void* const m_memory = memory[kFirst];
    void* const v_memory = memory[kSecond];
    const bool begins = piece_.constants->begins, has_state = states_ > 0;
    if (piece_.constants->adam) {
      step_by(gradient, before, memory, count,
              [&](const StepConstants& c, int64_t i, F g, F& w) __attribute__((always_inline)) {
                F m = F{}, v = F{};
                if (!begins) {
                  m = as_floats<V>(first.load_from(m_memory, i));
                  v = as_floats<V>(second.load_from(v_memory, i));
                }
                adam_step<F>(c, g, w, m, v);
                first.store_to(m_memory, i, as_words<V>(m));
                second.store_to(v_memory, i, as_words<V>(v));
              });
    } else {
      step_by(gradient, before, memory, count,
              [&](const StepConstants& c, int64_t i, F g, F& w) __attribute__((always_inline)) {
                F buffer = F{};
                if (has_state && !begins) buffer = as_floats<V>(first.load_from(m_memory, i));
                sgd_step<F>(c, g, w, buffer);
                if (has_state) first.store_to(m_memory, i, as_words<V>(buffer));
              });
    }
  }

  template <class Step>
  LPK_HD void step_by(const uint32_t* gradient, const uint32_t* before, void* const* memory,
                      int64_t count, const Step& one) {
    const StepConstants c = *piece_.constants;
    const char* next[kWeight];
    for (int place = 0; place < kWeight; ++place) {
      // What is not there is fetched as another once more, which costs nothing.
      const int from = memory[place] != nullptr ? place : kGrad;
      next[place] = static_cast<const char*>(memory[from]) + kUpdateSpan * lying_[from].bytes;
    }
    for (int64_t i = 0; i < count; i += kLanes) {
      for (int place = 0; place < kWeight; ++place)
        __builtin_prefetch(next[place] + i * lying_[place].bytes);
      const F g = as_floats<V>(load<U>(gradient + i));
      const F old = as_floats<V>(load<U>(before + i));
      F w = old;
      one(c, i, g, w);
      store(span_.asked + i, mask_words<V>((g != 0.0f) | (w != old)));
      store(span_.after + i, canonical_words<V>(w));
    }
  }

  void count_span(const uint32_t* before, int64_t count) const {
    U asked{}, unchanged{};
    for (int64_t i = 0; i < count; i += kLanes) {
      const U mask = load<U>(span_.asked + i);
      const F old = as_floats<V>(load<U>(before + i)), now = as_floats<V>(load<U>(span_.after + i));
      asked -= mask;
      unchanged -= mask & mask_words<V>(now == old);
    }
    uint32_t sums[2][kLanes];
    store(sums[0], asked);
    store(sums[1], unchanged);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      counts_->asked += sums[0][lane];
      counts_->unchanged += sums[1][lane];
    }
  }

  const UpdatePiece& piece_;
  UpdateCounts* counts_;
  int states_;
  StateKind kind_ = StateKind::kOther;
  bool scaled_ = false, inverted_ = false;
  float scale_ = 1;
  Lying lying_[kPlaces];
  Rounder<V> rounders_[kPlaces];
  UpdateSpan span_;
};

template <class V>
bool update_piece(const UpdatePiece& piece, UpdateCounts* counts) {
  for (int place = 0; place < kPlaces; ++place) {
    if (!WordFormat::fits(number_format(piece.args->quantizer(place)))) return false;
  }
  UpdateRun<V>(piece, counts).run();
  return true;
}

}  // namespace
}  // namespace lpk
