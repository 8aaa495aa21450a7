// An optimizer's step of a piece of a parameter, span by span in the first cache. Each stage is a
// loop over the span: values are decoded, stepped, rounded, counted and encoded again. What the
// next span reads is fetched while this one is stepped.
#pragma once

#include "update_lanes.h"
#include "update_rounder.h"
#include "update_values.h"

namespace lpk {
namespace {

static_assert(kUpdateSpan % kGroup == 0);

struct UpdateSpan {
  alignas(64) uint32_t gradient[kUpdateSpan];
  alignas(64) uint32_t before[kUpdateSpan];
  alignas(64) uint32_t after[kUpdateSpan];
  alignas(64) uint32_t states[2][kUpdateSpan];
  uint32_t asked[kUpdateSpan];  // a bit for each lane of a vector
};

// The work on each span of a piece, and the constants of the piece.
template <class V>
class UpdateSpans {
 public:
  using U = typename V::U;
  using F = typename V::F;

  UpdateSpans(const UpdatePiece& piece, UpdateCounts* counts)
      : piece_(piece),
        counts_(counts),
        states_(update_options(piece.args->numbers).states()),
        lying_{
            {piece, kGrad}, {piece, kMaster}, {piece, kFirst}, {piece, kSecond}, {piece, kWeight}},
        rounders_{
            {piece, kGrad}, {piece, kMaster}, {piece, kFirst}, {piece, kSecond}, {piece, kWeight}},
        scale_(piece.args->scale),
        copy_is_exact_(holds_all(number_format(piece.args->quantizer(kWeight)), kMaster)) {}

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

  // index: the first element's in the whole. count: whole vectors of elements. The parameter has
  // `valid` of these elements, from `lead` on.
  void run_span(void* const* memory, int64_t index, int64_t count, int64_t lead, int64_t valid) {
    const uint32_t* gradient = read_gradient(memory[kGrad], index, count);
    const uint32_t* before = read(kMaster, memory[kMaster], count, span_.before);
    uint32_t* states[2] = {};
    for (int s = 0; s < states_; ++s) states[s] = read_state(kFirst + s, memory, count);
    step(gradient, before, states, memory, count);
    for (int s = 0; s < states_; ++s) write(kFirst + s, states[s], index, count, memory, false);
    for (int64_t i = 0; (lead != 0 || valid != count) && i < count; i += kLanes)
      span_.asked[i / kLanes] &= lanes_between(lead - i, lead + valid - i);
    finish(before, memory, index, count, piece_.streamed && valid == count);
  }

  // A bit for each lane from `begin` up to `end`.
  static uint32_t lanes_between(int64_t begin, int64_t end) {
    const auto below = [](int64_t lane) {
      return (uint64_t{1} << std::clamp<int64_t>(lane, 0, kLanes)) - 1;
    };
    return static_cast<uint32_t>(below(end) & ~below(begin));
  }

  // From the master after the step on.
  void finish(const uint32_t* before, void* const* memory, int64_t index, int64_t count,
              bool streamed) {
    const bool rounded = rounders_[kMaster].rounds();
    if (rounded) rounders_[kMaster](span_.after, count, index);
    int64_t asked = 0, unchanged = 0;
    for (int64_t i = 0; i < count; i += kLanes) {
      F now = as_floats<V>(load<U>(span_.after + i));
      if (!rounded) store(span_.after + i, canonical_words<V>(now));
      const uint32_t mine = span_.asked[i / kLanes];
      asked += __builtin_popcount(mine);
      unchanged +=
          __builtin_popcount(mine & ~lanes_unlike<V>(now, as_floats<V>(load<U>(before + i))));
    }
    counts_->asked += asked;
    counts_->unchanged += unchanged;
    store_values<V>(lying_[kMaster], span_.after, count, memory[kMaster], false);
    if (!piece_.args->working_is_master)
      write(kWeight, span_.after, index, count, memory, streamed);
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

  // A state that is neither decoded nor rounded is stepped where it lies.
  uint32_t* read_state(int place, void* const* memory, int64_t count) {
    uint32_t* const x = lies_open(place) && !rounders_[place].rounds()
                            ? static_cast<uint32_t*>(memory[place])
                            : span_.states[place - kFirst];
    if (piece_.constants->begins) {
      std::fill_n(x, count, 0u);
    } else if (x != memory[place]) {
      load_values<V>(lying_[place], memory[place], count, x);
    }
    return x;
  }

  void write(int place, uint32_t* x, int64_t index, int64_t count, void* const* memory,
             bool streamed) const {
    if (x == memory[place]) return;
    const bool exact = place == kWeight && copy_is_exact_;
    if (rounders_[place].rounds() && !exact) rounders_[place](x, count, index);
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

  // before: the floats that the master was.
  void step(const uint32_t* gradient, const uint32_t* before, uint32_t* const* states,
            void* const* memory, int64_t count) {
    const StepConstants c = *piece_.constants;
    const int held = states_;
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
      const F g = as_floats<V>(load<U>(gradient + i));
      const F old = as_floats<V>(load<U>(before + i));
      F w = old, first{}, second{};
      if (held > 0) first = as_floats<V>(load<U>(states[0] + i));
      if (held > 1) second = as_floats<V>(load<U>(states[1] + i));
      if (c.adam) {
        adam_step<F>(c, g, w, first, second);
      } else {
        sgd_step<F>(c, g, w, first);
      }
      if (held > 0) store(states[0] + i, canonical_words<V>(first));
      if (held > 1) store(states[1] + i, canonical_words<V>(second));
      span_.asked[i / kLanes] = lanes_unlike<V>(g, F{}) | lanes_unlike<V>(w, old);
      store(span_.after + i, as_words<V>(w));
    }
  }

  const UpdatePiece& piece_;
  UpdateCounts* counts_;
  int states_;
  Lying lying_[kPlaces];
  Rounder<V> rounders_[kPlaces];
  GradientScale scale_;
  bool copy_is_exact_;  // of the master: nothing is rounded
  UpdateSpan span_;
};

}  // namespace
}  // namespace lpk
