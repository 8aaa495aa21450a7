// States of an optimizer as they lie, decoded and rounded to nearest even back to codes in the loop
// of the step, where its divisions leave the other units idle: of one kind, so that the loop has no
// branch.
#pragma once

#include "update_values.h"
#include "word_rules.h"

namespace lpk {
namespace {

// The code of a value rounded to nearest even: the shift that makes the code of a value of the
// format also cuts off what half a unit, added before, has carried out of.
template <class V, bool kSmall>
struct NearestCodes {
  using U = typename V::U;

  WordCodes codes;
  NearestRule<V> rule;
  uint32_t half_less;

  explicit NearestCodes(const Format& f)
      : codes(f), rule(f, 0), half_less((1u << codes.f.dropped >> 1) - 1) {}

  LPK_HD U operator()(U x) const {
    const U a = x & ~kSignWord;
    const U lowest = (a >> codes.f.dropped) & 1;
    U code = ((a + half_less + lowest) >> codes.f.dropped) - codes.offset;
    if constexpr (kSmall) {
      const U small = as_words<V>(as_floats<V>(a) + codes.f.magic) - codes.magic_bits;
      code = above<V>(U{} + codes.f.floor, a) ? small : code;
    }
    code |= (x & kSignWord) >> (32 - codes.bits);
    if (none_above<V>(a, rule.last)) return code;
    return code_of<V>(codes, rule(x, U{}));
  }
};

enum class StateKind { kOpen, kBrain, kTwoBytes, kOneByte, kOther };

// How the states of a piece can be stepped; kOther: through spans.
template <class V>
StateKind state_kind(const UpdateArgs& args, int place) {
  const Format f = number_format(args.quantizer(place));
  const int lies = args.lies[place];
  if (lies == kFloats) return args.rounds(place) ? StateKind::kOther : StateKind::kOpen;
  const bool nearest = args.quantizer(place)[kFormatInts] == 0;
  if (!args.rounds(place) || !nearest || !NearestRule<V>::fits(f)) return StateKind::kOther;
  if (lies == kBrainFloats && f.exp_bits == 8 && f.man_bits == 7) return StateKind::kBrain;
  if (lies == kHalves && f.exp_bits == 5 && f.man_bits == 10) return StateKind::kTwoBytes;
  if (lies != kCodes || args.bytes(place) > 2) return StateKind::kOther;
  return args.bytes(place) == 2 ? StateKind::kTwoBytes : StateKind::kOneByte;
}

template <class V, StateKind kKind>
struct StateWay {
  using U = typename V::U;
  using H = typename V::H;
  using B = typename Bytes<V::kWidth>::B;

  NearestCodes<V, kKind != StateKind::kBrain> nearest;

  explicit StateWay(const UpdateArgs& args, int place)
      : nearest(number_format(args.quantizer(place))) {}

  LPK_HD U load_from(const void* memory, int64_t i) const {
    const char* p = static_cast<const char*>(memory);
    if constexpr (kKind == StateKind::kOpen) {
      return load<U>(p + 4 * i);
    } else if constexpr (kKind == StateKind::kBrain) {
      return halves_as_words<V>(load<H>(p + 2 * i)) << 16;
    } else if constexpr (kKind == StateKind::kTwoBytes) {
      return value_of_code<V>(nearest.codes, halves_as_words<V>(load<H>(p + 2 * i)));
    } else {
      return value_of_code<V>(nearest.codes, bytes_as_words<V>(load<B>(p + i)));
    }
  }

  LPK_HD void store_to(void* memory, int64_t i, U x) const {
    char* p = static_cast<char*>(memory);
    if constexpr (kKind == StateKind::kOpen) {
      store(p + 4 * i, above<V>(x & ~kSignWord, U{} + kInfinityWord) ? U{} + kNanWord : x);
    } else if constexpr (kKind == StateKind::kOneByte) {
      store(p + i, words_as_bytes<V>(nearest(x)));
    } else {
      store(p + 2 * i, words_as_halves<V>(nearest(x)));
    }
  }
};

}  // namespace
}  // namespace lpk
