// An optimizer's step of a piece of a parameter, span by span in the first cache. Each stage is a
// loop over the span: values are decoded, stepped, rounded, counted and encoded again. What the
// next span reads is fetched while this one is stepped.
#pragma once

#include <algorithm>

#include "update_rounder.h"
#include "update_values.h"

namespace lpk {
namespace {

// Values of a span: its six words for each leave room in the cache for the lines on their way in.
constexpr int64_t kUpdateSpan = 512;
static_assert(kUpdateSpan % kGroup == 0);

template <class V>
LPK_HD typename V::U canonical_words(typename V::F x) {
  using U = typename V::U;
  const U words = as_words<V>(x);
  return above<V>(words & ~kSignWord, U{} + kInfinityWord) ? U{} + kNanWord : words;
}

// The factor by which gradients are still multiplied.
struct GradientScale {
  bool scaled = false, inverted = false;
  float value = 1;

  explicit GradientScale(const float* factor) {
    if (factor == nullptr) return;
    value = *factor;
    scaled = true;
    // The quotient by a power of two is the product by its reciprocal.
    const uint32_t bits = bits_of_float(value);
    const uint32_t exponent = bits >> 23 & 0xff;
    inverted = (bits & 0x7fffff) == 0 && exponent > 0 && exponent < 254;
    if (inverted) value = 1.0f / value;
  }

  template <class F>
  LPK_HD F operator()(F x) const {
    if (inverted) return x * value;
    return scaled ? x / value : x;
  }
};

// Elements of a piece from `begin` on, no more than a span, through copies: with zeros before the
// first, `lead` of them, and behind the last, up to whole vectors. run(memory, elements) steps
// these.
template <class Run>
void step_copies(const UpdatePiece& piece, int64_t begin, int64_t lead, int64_t count,
                 int64_t lanes, const Run& run) {
  alignas(64) char copies[kPlaces][kUpdateSpan * 4] = {};
  void* at[kPlaces];
  const UpdateArgs& args = *piece.args;
  for (int place = 0; place < kPlaces; ++place) {
    const void* memory = piece.at(place, begin);
    at[place] = memory == nullptr ? nullptr : copies[place];
    if (memory != nullptr)
      std::memcpy(copies[place] + lead * args.bytes(place), memory,
                  static_cast<size_t>(count * args.bytes(place)));
  }
  if (args.working_is_master) at[kWeight] = at[kMaster];
  run(at, (lead + count + lanes - 1) / lanes * lanes);
  for (int place = kMaster; place < kPlaces; ++place) {
    if (at[place] != nullptr)
      std::memcpy(piece.at(place, begin),
                  static_cast<const char*>(at[place]) + lead * args.bytes(place),
                  static_cast<size_t>(count * args.bytes(place)));
  }
}

// How many draws of the first element's random word belong to elements before it.
inline int64_t lead_of(const UpdatePiece& piece) {
  constexpr int64_t kMostPerWord = 4;
  return piece.place(piece.begin) % kMostPerWord;
}

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
        layouts_{
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
    store_values<V>(layouts_[kMaster], span_.after, count, memory[kMaster], false);
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

  bool is_float(int place) const { return layouts_[place].is(ElementType::kFloat32); }

  const uint32_t* read(int place, const void* memory, int64_t count, uint32_t* span) const {
    if (is_float(place)) return static_cast<const uint32_t*>(memory);
    load_values<V>(layouts_[place], memory, count, span);
    return span;
  }

  // A state that is neither decoded nor rounded is stepped where it lies.
  uint32_t* read_state(int place, void* const* memory, int64_t count) {
    uint32_t* const x = is_float(place) && !rounders_[place].rounds()
                            ? static_cast<uint32_t*>(memory[place])
                            : span_.states[place - kFirst];
    if (piece_.constants->begins) {
      std::fill_n(x, count, 0u);
    } else if (x != memory[place]) {
      load_values<V>(layouts_[place], memory[place], count, x);
    }
    return x;
  }

  void write(int place, uint32_t* x, int64_t index, int64_t count, void* const* memory,
             bool streamed) const {
    if (x == memory[place]) return;
    const bool exact = place == kWeight && copy_is_exact_;
    if (rounders_[place].rounds() && !exact) rounders_[place](x, count, index);
    store_values<V>(layouts_[place], x, count, memory[place], streamed);
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
    const int count_of_states = states_;
    const char* next[kWeight];
    for (int place = 0; place < kWeight; ++place) {
      // In place of a tensor that is not there the gradient is fetched once more, which costs
      // nothing.
      const int from = memory[place] != nullptr ? place : kGrad;
      next[place] = static_cast<const char*>(memory[from]) + kUpdateSpan * layouts_[from].bytes;
    }
    for (int64_t i = 0; i < count; i += kLanes) {
      for (int place = 0; place < kWeight; ++place)
        __builtin_prefetch(next[place] + i * layouts_[place].bytes);
      const F g = as_floats<V>(load<U>(gradient + i));
      const F old = as_floats<V>(load<U>(before + i));
      F w = old, first{}, second{};
      if (count_of_states > 0) first = as_floats<V>(load<U>(states[0] + i));
      if (count_of_states > 1) second = as_floats<V>(load<U>(states[1] + i));
      if (c.adam) {
        adam_step<F>(c, g, w, first, second);
      } else {
        sgd_step<F>(c, g, w, first);
      }
      if (count_of_states > 0) store(states[0] + i, canonical_words<V>(first));
      if (count_of_states > 1) store(states[1] + i, canonical_words<V>(second));
      span_.asked[i / kLanes] = lanes_unlike<V>(g, F{}) | lanes_unlike<V>(w, old);
      store(span_.after + i, as_words<V>(w));
    }
  }

  const UpdatePiece& piece_;
  UpdateCounts* counts_;
  int states_;
  Layout layouts_[kPlaces];
  SpanRounder<V> rounders_[kPlaces];
  GradientScale scale_;
  bool copy_is_exact_;  // of the master: nothing is rounded
  UpdateSpan span_;
};

// False, and nothing done, where a format is not for words.
template <class V>
bool step_piece(const UpdatePiece& piece, UpdateCounts* counts) {
  for (int place = 0; place < kPlaces; ++place) {
    if (!WordFormat::fits(number_format(piece.args->quantizer(place)))) return false;
  }
  UpdateSpans<V>(piece, counts).run();
  return true;
}

}  // namespace
}  // namespace lpk
