// The helpers that the loops of updates share.
#pragma once

#include <algorithm>

#include "update_values.h"

namespace lpk {
namespace {

// Values of a span: its six words for each leave room in the cache for the lines on their way in.
constexpr int64_t kUpdateSpan = 512;

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

  explicit GradientScale(const float* given) {
    if (given == nullptr) return;
    value = *given;
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

}  // namespace
}  // namespace lpk
