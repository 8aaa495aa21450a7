// One place of an update, a vector at a time: how its values are read, rounded and written in the
// loops of update_spans.h.
#pragma once

#include "update_rounder.h"
#include "update_values.h"

namespace lpk {
namespace {

// Codes that are the upper bytes of float16's.
template <class V>
LPK_HD typename V::H bytes_as_upper_halves(typename V::B b) {
#if defined(__AVX512F__)
  if constexpr (V::kWidth == 16)
    return (typename V::H)_mm256_slli_epi16(_mm256_cvtepu8_epi16((__m128i)b), 8);
#endif
  return words_as_halves<V>(bytes_as_words<V>(b) << 8);
}

template <class V>
LPK_HD typename V::B upper_halves_as_bytes(typename V::H h) {
#if defined(__AVX512F__)
  if constexpr (V::kWidth == 16)
    return (typename V::B)_mm256_cvtepi16_epi8(_mm256_srli_epi16((__m256i)h, 8));
#endif
  return words_as_bytes<V>(halves_as_words<V>(h) >> 8);
}

// The code of a value rounded to nearest even: the shift that makes the code of a value of the
// format also cuts off what half a unit, added before, has carried out of. kSmall as in WordRule;
// without it the exponents are float32's, and codes its upper bits.
template <class V, bool kSmall>
LPK_HD typename V::U nearest_code_of(const WordCodes& codes, typename V::U x) {
  using U = typename V::U;
  const uint32_t half_less = (1u << codes.f.dropped >> 1) - 1;
  if constexpr (!kSmall) return (x + half_less + ((x >> codes.f.dropped) & 1)) >> codes.f.dropped;
  const U a = x & ~kSignWord;
  const U lowest = (a >> codes.f.dropped) & 1;
  const U normal = ((a + half_less + lowest) >> codes.f.dropped) - codes.offset;
  const U small = as_words<V>(as_floats<V>(a) + codes.f.magic) - codes.magic_bits;
  const U code = above<V>(U{} + codes.f.floor, a) ? small : normal;
  return code | (x & kSignWord) >> (32 - codes.bits);
}

// code_of and value_of_code for finite values alone.
template <class V>
LPK_HD typename V::U finite_code_of(const WordCodes& c, typename V::U x) {
  using U = typename V::U;
  const U a = x & ~kSignWord;
  const U small = as_words<V>(as_floats<V>(a) + c.f.magic) - c.magic_bits;
  const U code = above<V>(U{} + c.f.floor, a) ? small : (a >> c.f.dropped) - c.offset;
  return code | (x & kSignWord) >> (32 - c.bits);
}

template <class V>
LPK_HD typename V::U finite_value_of_code(const WordCodes& c, typename V::U code) {
  using U = typename V::U;
  const U magnitude = code & ((1u << (c.bits - 1)) - 1);
  const U small = as_words<V>(as_floats<V>(magnitude + c.magic_bits) - c.f.magic);
  const U normal = (magnitude + c.offset) << c.f.dropped;
  const U r = above<V>(U{} + c.first_normal, magnitude) ? small : normal;
  return r | ((code << (32 - c.bits)) & kSignWord);
}

// kHalfByte: codes of e5m2, the upper bytes of float16's.
enum class Lies { kFloat, kBrain, kHalf, kHalfByte, kByte, kTwoBytes, kOther };
// kNearest: by NearestRule; kEven: to nearest even in a format with float32's exponents.
enum class Rounds { kNot, kNearest, kEven, kDrawn, kOther };

inline Lies lies_of(const UpdateArgs& args, int place) {
  if (args.lies[place] == kFloats) return Lies::kFloat;
  if (args.lies[place] == kBrainFloats) return Lies::kBrain;
  if (args.lies[place] == kHalves) return Lies::kHalf;
  if (args.bytes(place) == 4) return Lies::kOther;
  if (args.bytes(place) == 2) return Lies::kTwoBytes;
  const Format f = number_format(args.quantizer(place));
  const bool half = f.exp_bits == 5 && f.bias == 15 && f.subnormals;
  return half && f.specials == Specials::kIeee ? Lies::kHalfByte : Lies::kByte;
}

template <class V>
Rounds rounds_of(const UpdateArgs& args, int place) {
  if (!args.rounds(place)) return Rounds::kNot;
  const Format f = number_format(args.quantizer(place));
  const auto mode = static_cast<Rounding>(args.quantizer(place)[kFormatInts]);
  if (mode == Rounding::kStochastic) return Rounds::kDrawn;
  if (mode != Rounding::kNearestEven) return Rounds::kOther;
  if (NearestRule<V>::fits(f)) return Rounds::kNearest;
  return WordFormat(f).evenly_spaced && f.man_bits > 0 ? Rounds::kEven : Rounds::kOther;
}

template <Lies kWayLies, Rounds kWayRounds>
struct WayTag {
  static constexpr Lies kLies = kWayLies;
  static constexpr Rounds kRounds = kWayRounds;
};

// Calls make(WayTag) for how a place lies and is rounded, if there are loops for that.
template <class V, class Make>
void with_way(const UpdateArgs& args, int place, const Make& make) {
  const Lies lies = lies_of(args, place);
  const Rounds rounds = rounds_of<V>(args, place);
  const auto is = [&](Lies l, Rounds r) { return lies == l && rounds == r; };
  if (is(Lies::kFloat, Rounds::kNot)) make(WayTag<Lies::kFloat, Rounds::kNot>{});
  if (is(Lies::kBrain, Rounds::kEven)) make(WayTag<Lies::kBrain, Rounds::kEven>{});
  if (is(Lies::kBrain, Rounds::kDrawn)) make(WayTag<Lies::kBrain, Rounds::kDrawn>{});
  if (is(Lies::kHalf, Rounds::kNearest)) make(WayTag<Lies::kHalf, Rounds::kNearest>{});
  if (is(Lies::kHalf, Rounds::kDrawn)) make(WayTag<Lies::kHalf, Rounds::kDrawn>{});
  if (is(Lies::kHalfByte, Rounds::kNearest)) make(WayTag<Lies::kHalfByte, Rounds::kNearest>{});
  if (is(Lies::kHalfByte, Rounds::kDrawn)) make(WayTag<Lies::kHalfByte, Rounds::kDrawn>{});
  if (is(Lies::kByte, Rounds::kNearest)) make(WayTag<Lies::kByte, Rounds::kNearest>{});
  if (is(Lies::kByte, Rounds::kDrawn)) make(WayTag<Lies::kByte, Rounds::kDrawn>{});
  if (is(Lies::kTwoBytes, Rounds::kNearest)) make(WayTag<Lies::kTwoBytes, Rounds::kNearest>{});
  if (is(Lies::kTwoBytes, Rounds::kDrawn)) make(WayTag<Lies::kTwoBytes, Rounds::kDrawn>{});
}

// The constants of rounding and coding at one place, made once for a piece.
template <class V>
struct WayRules {
  WordCodes codes;
  NearestRule<V> nearest;
  WordRule<V, Rounding::kNearestEven, false> even;
  WordRule<V, Rounding::kStochastic, true> drawn;
  uint32_t last_code;  // of finite magnitudes

  WayRules(const UpdatePiece& piece, int place)
      : WayRules(number_format(piece.args->quantizer(place)),
                 static_cast<int>(piece.args->quantizer(place)[kFormatInts + 1])) {}
  // Not compiled in place, five times.
  __attribute__((noinline)) WayRules(const Format& f, int random_bits)
      : codes(f),
        nearest(f, 0),
        even(f, 0),
        drawn(f, random_bits),
        last_code(codes.infinity == kNoCode ? codes.last_number : codes.infinity - 1) {}
};

template <class V>
LPK_HD typename V::U value_of(const WayRules<V>& by, typename V::U code) {
  const typename V::U magnitude = code & ((1u << (by.codes.bits - 1)) - 1);
  if (by.codes.subnormals && none_above<V>(magnitude, by.last_code))
    return finite_value_of_code<V>(by.codes, code);
  return value_of_code<V>(by.codes, code);
}

// A vector of values from element i on.
template <class V, Lies kLies>
LPK_HD typename V::U load_by(const WayRules<V>& by, const void* memory, int64_t i) {
  using U = typename V::U;
  using H = typename V::H;
  using B = typename V::B;
  const char* p = static_cast<const char*>(memory);
  if constexpr (kLies == Lies::kFloat) {
    return load<U>(p + 4 * i);
  } else if constexpr (kLies == Lies::kBrain) {
    return words_of<V, ElementType::kBfloat16>(load<H>(p + 2 * i));
  } else if constexpr (kLies == Lies::kHalf) {
    return words_of<V, ElementType::kFloat16>(load<H>(p + 2 * i));
  } else if constexpr (kLies == Lies::kHalfByte) {
    return words_of<V, ElementType::kFloat16>(bytes_as_upper_halves<V>(load<B>(p + i)));
  } else if constexpr (kLies == Lies::kByte) {
    return value_of<V>(by, bytes_as_words<V>(load<B>(p + i)));
  } else {
    return value_of<V>(by, halves_as_words<V>(load<H>(p + 2 * i)));
  }
}

template <class V, Lies kLies, Rounds kRounds>
struct Way {
  using U = typename V::U;
  using H = typename V::H;
  using B = typename V::B;

  WayRules<V> by;

  explicit Way(const WayRules<V>& rules) : by(rules) {}

  LPK_HD U load_from(const void* memory, int64_t i) const {
    return load_by<V, kLies>(by, memory, i);
  }

  // draw: of kDrawn.
  LPK_HD U rounded(U x, U draw) const {
    if constexpr (kRounds == Rounds::kNot) {
      return above<V>(x & ~kSignWord, U{} + kInfinityWord) ? U{} + kNanWord : x;
    } else {
      if constexpr (kRounds == Rounds::kNearest) return by.nearest(x, U{});
      if constexpr (kRounds == Rounds::kEven) return by.even(x, U{});
      if constexpr (kRounds == Rounds::kDrawn) return by.drawn(x, draw);
    }
  }

  // x: a value of the format.
  LPK_HD void store_to(void* memory, int64_t i, U x) const {
    char* p = static_cast<char*>(memory);
    if constexpr (kLies == Lies::kFloat) {
      store(p + 4 * i, x);
    } else if constexpr (kLies == Lies::kBrain) {
      store(p + 2 * i, halves_of<V, ElementType::kBfloat16>(x));
    } else if constexpr (kLies == Lies::kHalf) {
      store(p + 2 * i, halves_of<V, ElementType::kFloat16>(x));
    } else if constexpr (kLies == Lies::kHalfByte) {
      store(p + i, upper_halves_as_bytes<V>(halves_of<V, ElementType::kFloat16>(x)));
    } else if constexpr (kLies == Lies::kByte) {
      store(p + i, words_as_bytes<V>(code_of_value(x)));
    } else {
      store(p + 2 * i, words_as_halves<V>(code_of_value(x)));
    }
  }

  // Rounds and stores.
  LPK_HD void round_to(void* memory, int64_t i, U x, U draw) const {
    char* p = static_cast<char*>(memory);
    if constexpr (kLies == Lies::kBrain && kRounds == Rounds::kEven)
      return store(p + 2 * i, half(x));
    constexpr bool kCoded = kLies == Lies::kByte || kLies == Lies::kTwoBytes;
    if constexpr (kCoded && kRounds == Rounds::kNearest) {
      if (none_above<V>(x & ~kSignWord, by.nearest.last)) {
        const U code = nearest_code_of<V, true>(by.codes, x);
        if constexpr (kLies == Lies::kByte) {
          store(p + i, words_as_bytes<V>(code));
        } else {
          store(p + 2 * i, words_as_halves<V>(code));
        }
        return;
      }
    }
    store_to(memory, i, rounded(x, draw));
  }

  // Rounds to the upper halves of bf16, for kBrain and kEven.
  LPK_HD H half(U x) const {
    if (none_above<V>(x & ~kSignWord, by.nearest.last))
      return words_as_halves<V>(nearest_code_of<V, false>(by.codes, x)
                                << (by.codes.f.dropped - 16));
    return halves_of<V, ElementType::kBfloat16>(rounded(x, U{}));
  }

 private:
  LPK_HD U code_of_value(U x) const {
    if (none_above<V>(x & ~kSignWord, by.codes.f.max)) return finite_code_of<V>(by.codes, x);
    return code_of<V>(by.codes, x);
  }
};

// The draws of one place, whatever their number in a word.
template <class V>
class WayDraws {
 public:
  using U = typename V::U;

  __attribute__((noinline)) WayDraws(const UpdatePiece& piece, int place) {
    const int64_t* quantizer = piece.args->quantizer(place);
    if (!piece.args->rounds(place) ||
        static_cast<Rounding>(quantizer[kFormatInts]) != Rounding::kStochastic)
      return;
    const ElementBlock job = block_of(piece, place);
    log2_ = draw_layout(static_cast<int>(job.random_bits)).per_word_log2;
    if (log2_ == 0) new (&one_) WordDraws<V, 1>(job);
    if (log2_ == 1) new (&two_) WordDraws<V, 2>(job);
    if (log2_ == 2) new (&four_) WordDraws<V, 4>(job);
  }

  // index: of the first lane, in the whole; vector: which one since a multiple of 4.
  LPK_HD U at(uint64_t index, int64_t vector) {
    if (log2_ == 0) {
      one_.fetch(index);
      return one_.draws(0);
    }
    if (log2_ == 1) {
      if ((vector & 1) == 0) two_.fetch(index);
      return two_.draws(static_cast<int>(vector & 1));
    }
    if ((vector & 3) == 0) four_.fetch(index);
    return four_.draws(static_cast<int>(vector & 3));
  }

 private:
  int log2_ = 0;
  union {
    WordDraws<V, 1> one_;
    WordDraws<V, 2> two_;
    WordDraws<V, 4> four_;
  };
};

}  // namespace
}  // namespace lpk
