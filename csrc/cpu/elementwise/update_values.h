// Float32 values of parameters and states from memory and back, a vector at a time: as an
// ElementType, or as codes. Only whole vectors, and of codes only values of the format.
#pragma once

#include "code_kernel.h"
#include "update.h"

namespace lpk {
namespace {

// The code of a value of the format, in a word.
template <class V>
LPK_HD typename V::U code_of(const WordCodes& c, typename V::U b) {
  using U = typename V::U;
  const U a = b & ~kSignWord;
  const U sign = (b & kSignWord) >> (32 - c.bits);
  const U small = as_words<V>(as_floats<V>(a) + c.f.magic) - c.magic_bits;
  U code = above<V>(U{} + c.f.floor, a) ? small : (a >> c.f.dropped) - c.offset;
  code = a == kInfinityWord ? U{} + c.infinity : code;
  code |= sign;
  return above<V>(a, U{} + kInfinityWord) ? U{} + c.nan : code;
}

template <class V>
LPK_HD typename V::U value_of_code(const WordCodes& c, typename V::U code) {
  using U = typename V::U;
  const U magnitude = code & ((1u << (c.bits - 1)) - 1);
  const U sign = (code << (32 - c.bits)) & kSignWord;
  U small = as_words<V>(as_floats<V>(magnitude + c.magic_bits) - c.f.magic);
  if (!c.subnormals) small = U{};
  U r = above<V>(U{} + c.first_normal, magnitude) ? small : (magnitude + c.offset) << c.f.dropped;
  r = magnitude == c.infinity ? U{} + kInfinityWord : r;
  r = above<V>(magnitude, U{} + c.last_number) ? U{} + kNanWord : r | sign;
  if (c.one_zero) r = code == c.nan ? U{} + kNanWord : r;
  return r;
}

// How the values at one place of an update lie in memory.
struct Lying {
  int lies;
  int64_t bytes;
  bool upper_halves;  // codes of e5m2
  WordCodes codes;

  Lying(const UpdatePiece& piece, int place)
      : lies(piece.args->lies[place]),
        bytes(piece.args->bytes(place)),
        codes(number_format(piece.args->quantizer(place))) {
    const Format f = number_format(piece.args->quantizer(place));
    upper_halves = bytes == 1 && f.exp_bits == 5 && f.bias == 15 && f.subnormals &&
                   f.specials == Specials::kIeee;
  }
};

// body(load): load(i) is the vector of values from element i on.
template <class V, class Body>
LPK_HD void with_load(const Lying& how, const void* from, const Body& body) {
  using U = typename V::U;
  using H = typename V::H;
  const char* p = static_cast<const char*>(from);
  const WordCodes c = how.codes;
  if (how.lies == static_cast<int>(ElementType::kFloat16)) {
    body([&](int64_t i) { return words_of<V, ElementType::kFloat16>(load<H>(p + 2 * i)); });
  } else if (how.lies == static_cast<int>(ElementType::kBfloat16)) {
    body([&](int64_t i) { return words_of<V, ElementType::kBfloat16>(load<H>(p + 2 * i)); });
  } else if (how.lies == static_cast<int>(ElementType::kFloat32)) {
    body([&](int64_t i) { return load<U>(p + 4 * i); });
  } else if (how.upper_halves) {
    body([&](int64_t i) {
      return words_of<V, ElementType::kFloat16>(
          bytes_as_upper_halves<V>(load<typename V::B>(p + i)));
    });
  } else if (how.bytes == 1) {
    using B = typename V::B;
    body([&](int64_t i) { return value_of_code<V>(c, bytes_as_words<V>(load<B>(p + i))); });
  } else if (how.bytes == 2) {
    body([&](int64_t i) { return value_of_code<V>(c, halves_as_words<V>(load<H>(p + 2 * i))); });
  } else {
    body([&](int64_t i) { return value_of_code<V>(c, load<U>(p + 4 * i)); });
  }
}

template <class V>
__attribute__((noinline)) void load_values(const Lying& how, const void* from, int64_t count,
                                           uint32_t* to) {
  with_load<V>(how, from, [&](const auto& values) __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; i += V::kWidth) store(to + i, values(i));
  });
}

// Stores make(i) for every vector, past the caches if `streamed` and if the memory is aligned for
// that.
template <class V, class Make>
LPK_HD void store_all(int64_t count, char* to, bool streamed, const Make& make) {
  using T = decltype(make(int64_t{0}));
  if (streamed && reinterpret_cast<uintptr_t>(to) % sizeof(T) == 0) {
    for (int64_t i = 0; i < count; i += V::kWidth)
      stream(to + i / V::kWidth * static_cast<int64_t>(sizeof(T)), make(i));
    return;
  }
  for (int64_t i = 0; i < count; i += V::kWidth)
    store(to + i / V::kWidth * static_cast<int64_t>(sizeof(T)), make(i));
}

template <class V>
__attribute__((noinline)) void store_values(const Lying& how, const uint32_t* x, int64_t count,
                                            void* to, bool streamed) {
  using U = typename V::U;
  char* p = static_cast<char*>(to);
  const WordCodes c = how.codes;
  const auto at = [&](int64_t i) { return load<U>(x + i); };
  if (how.lies == static_cast<int>(ElementType::kFloat16)) {
    store_all<V>(count, p, streamed,
                 [&](int64_t i) { return halves_of<V, ElementType::kFloat16>(at(i)); });
  } else if (how.lies == static_cast<int>(ElementType::kBfloat16)) {
    store_all<V>(count, p, streamed,
                 [&](int64_t i) { return halves_of<V, ElementType::kBfloat16>(at(i)); });
  } else if (how.lies == static_cast<int>(ElementType::kFloat32)) {
    store_all<V>(count, p, streamed, at);
  } else if (how.upper_halves) {
    store_all<V>(count, p, streamed, [&](int64_t i) {
      return upper_halves_as_bytes<V>(halves_of<V, ElementType::kFloat16>(at(i)));
    });
  } else if (how.bytes == 1) {
    store_all<V>(count, p, streamed,
                 [&](int64_t i) { return words_as_bytes<V>(code_of<V>(c, at(i))); });
  } else if (how.bytes == 2) {
    store_all<V>(count, p, streamed,
                 [&](int64_t i) { return words_as_halves<V>(code_of<V>(c, at(i))); });
  } else {
    store_all<V>(count, p, streamed, [&](int64_t i) { return code_of<V>(c, at(i)); });
  }
}

}  // namespace
}  // namespace lpk
