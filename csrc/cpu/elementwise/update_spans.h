// An optimizer's step of a piece of a parameter, span by span in the first cache, in two loops. One
// decodes the states, steps, rounds and encodes them: beside its divisions there is time for that.
// The other rounds the master, counts, encodes it and rounds its copy. What the next span reads is
// fetched while this one is stepped. Formats and modes without a loop of their own, and two states
// that differ, go stage by stage instead: each a loop over the span.
#pragma once

#include "update_lanes.h"
#include "update_rounder.h"
#include "update_way.h"

namespace lpk {
namespace {

static_assert(kUpdateSpan % kGroup == 0);

struct UpdateSpan {
  alignas(64) uint32_t gradient[kUpdateSpan];
  alignas(64) uint32_t before[kUpdateSpan];
  alignas(64) uint32_t after[kUpdateSpan];
  alignas(64) uint32_t draws[kUpdateSpan];  // of the master
  alignas(64) uint32_t states[2][kUpdateSpan];
  uint32_t asked[kUpdateSpan];  // a bit for each lane of a vector
};

// What a piece needs for each of its spans.
template <class V>
class UpdateSpans {
 public:
  using U = typename V::U;
  using F = typename V::F;
  using H = typename V::H;

  UpdateSpans(const UpdatePiece& piece, UpdateCounts* counts)
      : piece_(piece),
        counts_(counts),
        states_(update_options(piece.args->numbers).states()),
        lying_{
            {piece, kGrad}, {piece, kMaster}, {piece, kFirst}, {piece, kSecond}, {piece, kWeight}},
        rounders_{
            {piece, kGrad}, {piece, kMaster}, {piece, kFirst}, {piece, kSecond}, {piece, kWeight}},
        rules_{
            {piece, kGrad}, {piece, kMaster}, {piece, kFirst}, {piece, kSecond}, {piece, kWeight}},
        draws_{
            {piece, kGrad}, {piece, kMaster}, {piece, kFirst}, {piece, kSecond}, {piece, kWeight}},
        scale_(piece.args->scale) {
    choose_step();
    choose_finish();
    gradient_in_loop_ =
        lies_of(*piece.args, kGrad) == Lies::kBrain && !scale_.scaled && !rounders_[kGrad].rounds();
    draws_in_loop_ = finish_ != nullptr && rounds_of<V>(*piece.args, kMaster) == Rounds::kDrawn;
    copy_is_exact_ = holds_all(number_format(piece.args->quantizer(kWeight)), kMaster);
    master_lies_ = lies_of(*piece.args, kMaster);
    if (master_lies_ == Lies::kOther) master_lies_ = Lies::kFloat;
  }

  void run() {
    void* memory[kPlaces];
    int64_t lead = lead_of(piece_);
    for (int64_t i = piece_.begin; i < piece_.end;) {
      const int64_t count = std::min(kUpdateSpan - lead, piece_.end - i);
      for (int place = 0; place < kPlaces; ++place) memory[place] = piece_.at(place, i);
      const int64_t index = piece_.place(i) - lead;
      if (lead == 0 && count % kLanes == 0) {
        run_span(memory, index, count, 0, count);
      } else {
        step_copies(piece_, i, lead, count, kLanes, [&](void* const* copies, int64_t whole) {
          run_span(copies, index, whole, lead, count);
        });
      }
      i += count;
      lead = 0;
    }
    if (piece_.streamed) Isa::end_stream();
  }

 private:
  static constexpr int64_t kLanes = V::kWidth;

  // index: of the first in the whole. count: whole vectors; those from `lead` on are the
  // parameter's, `valid` of them.
  void run_span(void* const* memory, int64_t index, int64_t count, int64_t lead, int64_t valid) {
    const uint32_t* gradient = gradient_in_loop_ ? static_cast<const uint32_t*>(memory[kGrad])
                                                 : read_gradient(memory[kGrad], index, count);
    const uint32_t* before = master_lies_ == Lies::kFloat
                                 ? read(kMaster, memory[kMaster], count, span_.before)
                                 : span_.before;
    if (step_ != nullptr) {
      (this->*step_)(gradient, before, memory, index, count);
    } else {
      step_stages(gradient, before, memory, index, count);
    }
    for (int64_t i = 0; (lead != 0 || valid != count) && i < count; i += kLanes)
      span_.asked[i / kLanes] &= lanes_between(lead - i, lead + valid - i);
    if (finish_ != nullptr) {
      (this->*finish_)(before, memory, index, count, piece_.streamed && valid == count);
    } else {
      finish_stages(before, memory, index, count, piece_.streamed && valid == count);
    }
  }

  // A bit for each lane from `begin` up to `end`.
  static uint32_t lanes_between(int64_t begin, int64_t end) {
    const auto below = [](int64_t lane) {
      return (uint64_t{1} << std::clamp<int64_t>(lane, 0, kLanes)) - 1;
    };
    return static_cast<uint32_t>(below(end) & ~below(begin));
  }

  void step_stages(const uint32_t* gradient, const uint32_t* before, void* const* memory,
                   int64_t index, int64_t count) {
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
    step(gradient, before, states, memory, index, count);
    for (int s = 0; s < states_; ++s) write(kFirst + s, states[s], index, count, memory, false);
  }

  // From the master after the step on.
  void finish_stages(const uint32_t* before, void* const* memory, int64_t index, int64_t count,
                     bool streamed) {
    if (rounders_[kMaster].rounds()) rounders_[kMaster](span_.after, count, index);
    for (int64_t i = 0; !rounders_[kMaster].rounds() && i < count; i += kLanes)
      store(span_.after + i, canonical_words<V>(as_floats<V>(load<U>(span_.after + i))));
    for (int64_t i = 0; i < count; i += kLanes)
      tally(i, as_floats<V>(load<U>(span_.after + i)), as_floats<V>(load<U>(before + i)));
    store_values<V>(lying_[kMaster], span_.after, count, memory[kMaster], false);
    if (!piece_.args->working_is_master)
      write(kWeight, span_.after, index, count, memory, streamed);
  }

  LPK_HD void tally(int64_t i, F now, F before) {
    const uint32_t asked = span_.asked[i / kLanes];
    counts_->asked += __builtin_popcount(asked);
    counts_->unchanged += __builtin_popcount(asked & ~lanes_unlike<V>(now, before));
  }

  // Whether a place is rounded to values of a format with float32's exponents.
  bool holds_all(const Format& wide, int place) const {
    const Format f = number_format(piece_.args->quantizer(place));
    const int quantum = f.emin - (f.subnormals ? f.man_bits : 0);
    return piece_.args->rounds(place) && WordFormat(wide).evenly_spaced &&
           wide.overflow == Overflow::kInfinity && f.man_bits <= wide.man_bits &&
           quantum >= wide.emin - wide.man_bits && f.max <= wide.max;
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
    if (!scale_.scaled && !rounders_[kGrad].rounds()) return x;
    uint32_t* g = span_.gradient;
    for (int64_t i = 0; i < count; i += kLanes) {
      store(g + i, as_words<V>(scale_(as_floats<V>(load<U>(x + i)))));
    }
    if (rounders_[kGrad].rounds()) rounders_[kGrad](g, count, index);
    return g;
  }

  void step(const uint32_t* gradient, const uint32_t* before, uint32_t* const* states,
            void* const* memory, int64_t index, int64_t count) {
    if (piece_.constants->adam) {
      step_by(gradient, before, memory, index, count,
              [&](const StepConstants& c, int64_t i, F g, F& w) __attribute__((always_inline)) {
                F m = as_floats<V>(load<U>(states[0] + i));
                F v = as_floats<V>(load<U>(states[1] + i));
                adam_step<F>(c, g, w, m, v);
                store(states[0] + i, canonical_words<V>(m));
                store(states[1] + i, canonical_words<V>(v));
              });
    } else {
      const bool has_state = states_ > 0;
      step_by(gradient, before, memory, index, count,
              [&](const StepConstants& c, int64_t i, F g, F& w) __attribute__((always_inline)) {
                F buffer = F{};
                if (has_state) buffer = as_floats<V>(load<U>(states[0] + i));
                sgd_step<F>(c, g, w, buffer);
                if (has_state) store(states[0] + i, canonical_words<V>(buffer));
              });
    }
  }

  // gradient: the floats, or the memory of bf16. before: the floats that the master was; from
  // memory that is decoded here they are put there.
  template <class One>
  LPK_HD void step_by(const uint32_t* gradient, const uint32_t* before, void* const* memory,
                      int64_t index, int64_t count, const One& one) {
    const StepConstants c = *piece_.constants;
    const bool brain = gradient_in_loop_, draws = draws_in_loop_;
    const Lies lies = master_lies_;
    const void* const master = memory[kMaster];
    const char* next[kWeight];
    for (int place = 0; place < kWeight; ++place) {
      // In place of a tensor that is not there the gradient is fetched once more, which costs
      // nothing.
      const int from = memory[place] != nullptr ? place : kGrad;
      next[place] = static_cast<const char*>(memory[from]) + kUpdateSpan * lying_[from].bytes;
    }
    for (int64_t i = 0; i < count; i += kLanes) {
      for (int place = 0; place < kWeight; ++place)
        __builtin_prefetch(next[place] + i * lying_[place].bytes);
      U gradient_words;
      if (brain) {
        const void* at = reinterpret_cast<const uint16_t*>(gradient) + i;
        gradient_words = words_of<V, ElementType::kBfloat16>(load<H>(at));
      } else {
        gradient_words = load<U>(gradient + i);
      }
      const F g = as_floats<V>(gradient_words);
      U old_words;
      if (lies == Lies::kFloat) {
        old_words = load<U>(before + i);
      } else {
        old_words = load_master(lies, master, i);
        store(span_.before + i, old_words);
      }
      const F old = as_floats<V>(old_words);
      F w = old;
      one(c, i, g, w);
      span_.asked[i / kLanes] = lanes_unlike<V>(g, F{}) | lanes_unlike<V>(w, old);
      store(span_.after + i, as_words<V>(w));
      if (draws)
        store(span_.draws + i, draws_[kMaster].at(static_cast<uint64_t>(index + i), i / kLanes));
    }
  }

  LPK_HD U load_master(Lies lies, const void* memory, int64_t i) const {
    const WayRules<V>& rules = rules_[kMaster];
    switch (lies) {
      case Lies::kBrain:
        return load_by<V, Lies::kBrain>(rules, memory, i);
      case Lies::kHalf:
        return load_by<V, Lies::kHalf>(rules, memory, i);
      case Lies::kHalfByte:
        return load_by<V, Lies::kHalfByte>(rules, memory, i);
      case Lies::kByte:
        return load_by<V, Lies::kByte>(rules, memory, i);
      default:
        return load_by<V, Lies::kTwoBytes>(rules, memory, i);
    }
  }

  using Step = void (UpdateSpans::*)(const uint32_t*, const uint32_t*, void* const*, int64_t,
                                     int64_t);
  using Finish = void (UpdateSpans::*)(const uint32_t*, void* const*, int64_t, int64_t, bool);

  void choose_step() {
    const UpdateArgs& args = *piece_.args;
    const bool alike = states_ < 2 || (lies_of(args, kFirst) == lies_of(args, kSecond) &&
                                       rounds_of<V>(args, kFirst) == rounds_of<V>(args, kSecond));
    if (!alike) return;
    with_way<V>(args, states_ > 0 ? kFirst : kGrad, [this](auto way) {
      using Tag = decltype(way);
      step_ = &UpdateSpans::template step_states<Tag::kLies, Tag::kRounds>;
    });
    if (states_ == 0) step_ = &UpdateSpans::template step_states<Lies::kFloat, Rounds::kNot>;
  }

  void choose_finish() {
    const UpdateArgs& args = *piece_.args;
    const bool copies = !args.working_is_master && lies_of(args, kWeight) == Lies::kBrain &&
                        rounds_of<V>(args, kWeight) == Rounds::kEven;
    with_way<V>(args, kMaster, [&](auto way) {
      using Tag = decltype(way);
      finish_ = copies ? &UpdateSpans::template finish_master<Tag::kLies, Tag::kRounds, true>
                       : &UpdateSpans::template finish_master<Tag::kLies, Tag::kRounds, false>;
    });
  }

  template <Lies kLies, Rounds kRounds>
  __attribute__((noinline)) void step_states(const uint32_t* gradient, const uint32_t* before,
                                             void* const* memory, int64_t index, int64_t count) {
    const Way<V, kLies, kRounds> way(rules_[kFirst]), second(rules_[kSecond]);
    void* const m_memory = memory[kFirst];
    void* const v_memory = memory[kSecond];
    const bool begins = piece_.constants->begins, has_state = states_ > 0;
    const auto draw = [&](int place, int64_t i) __attribute__((always_inline)) {
      if constexpr (kRounds != Rounds::kDrawn) return U{};
      return draws_[place].at(static_cast<uint64_t>(index + i), i / kLanes);
    };
    if (piece_.constants->adam) {
      step_by(gradient, before, memory, index, count,
              [&](const StepConstants& c, int64_t i, F g, F& w) __attribute__((always_inline)) {
                F m = F{}, v = F{};
                if (!begins) {
                  m = as_floats<V>(way.load_from(m_memory, i));
                  v = as_floats<V>(second.load_from(v_memory, i));
                }
                adam_step<F>(c, g, w, m, v);
                way.round_to(m_memory, i, as_words<V>(m), draw(kFirst, i));
                second.round_to(v_memory, i, as_words<V>(v), draw(kSecond, i));
              });
    } else {
      step_by(gradient, before, memory, index, count,
              [&](const StepConstants& c, int64_t i, F g, F& w) __attribute__((always_inline)) {
                F buffer = F{};
                if (has_state && !begins) buffer = as_floats<V>(way.load_from(m_memory, i));
                sgd_step<F>(c, g, w, buffer);
                if (has_state) way.round_to(m_memory, i, as_words<V>(buffer), draw(kFirst, i));
              });
    }
  }

  // kCopies: into bf16; elsewhere copies are made afterwards.
  template <Lies kLies, Rounds kRounds, bool kCopies>
  __attribute__((noinline)) void finish_master(const uint32_t* before, void* const* memory,
                                               int64_t index, int64_t count, bool streamed) {
    const Way<V, kLies, kRounds> way(rules_[kMaster]);
    const Way<V, Lies::kBrain, Rounds::kEven> copy(rules_[kWeight]);
    void* const master = memory[kMaster];
    char* const weight = static_cast<char*>(memory[kWeight]);
    const bool past = streamed && reinterpret_cast<uintptr_t>(weight) % sizeof(H) == 0;
    int64_t asked = 0, unchanged = 0;
    for (int64_t i = 0; i < count; i += kLanes) {
      U draw{};
      if constexpr (kRounds == Rounds::kDrawn) draw = load<U>(span_.draws + i);
      const U now = way.rounded(load<U>(span_.after + i), draw);
      const uint32_t mine = span_.asked[i / kLanes];
      const F old = as_floats<V>(load<U>(before + i));
      asked += __builtin_popcount(mine);
      unchanged += __builtin_popcount(mine & ~lanes_unlike<V>(as_floats<V>(now), old));
      way.store_to(master, i, now);
      if constexpr (kCopies) {
        const H rounded =
            copy_is_exact_ ? halves_of<V, ElementType::kBfloat16>(now) : copy.half(now);
        past ? stream(weight + 2 * i, rounded) : store(weight + 2 * i, rounded);
      } else {
        store(span_.after + i, now);
      }
    }
    counts_->asked += asked;
    counts_->unchanged += unchanged;
    if (!kCopies && !piece_.args->working_is_master)
      write(kWeight, span_.after, index, count, memory, streamed);
  }

  const UpdatePiece& piece_;
  UpdateCounts* counts_;
  int states_;
  Lying lying_[kPlaces];
  Rounder<V> rounders_[kPlaces];
  WayRules<V> rules_[kPlaces];
  WayDraws<V> draws_[kPlaces];
  Step step_ = nullptr;
  Finish finish_ = nullptr;
  bool gradient_in_loop_, draws_in_loop_;
  bool copy_is_exact_;  // of the master into bf16: nothing is rounded
  Lies master_lies_;    // kFloat: not decoded in the loop of the step
  GradientScale scale_;
  UpdateSpan span_;
};

}  // namespace
}  // namespace lpk
