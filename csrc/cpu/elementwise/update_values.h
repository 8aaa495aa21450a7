// Float32 values of parameters and states from memory and back, a vector at a time: as an
// ElementType, or as codes. Only whole vectors, and of codes only values of the format.
#pragma once

#include "code_kernel.h"
#include "update.h"

namespace lpk {
namespace {

// How the values at one place of an update lie in memory.
struct Layout {
  int lies;
  int64_t bytes;
  bool upper_halves;  // codes of e5m2
  WordCodes codes;

  Layout(const UpdatePiece& piece, int place)
      : lies(piece.args->lies[place]),
        bytes(piece.args->bytes(place)),
        codes(number_format(piece.args->quantizer(place))) {
    const Format f = number_format(piece.args->quantizer(place));
    upper_halves = bytes == 1 && f.exp_bits == 5 && f.bias == 15 && f.subnormals &&
                   f.specials == Specials::kIeee;
  }

  bool is(ElementType type) const { return lies == static_cast<int>(type); }
};

// Calls body(words, memory): two functions, from vectors as they lie in memory to words and back.
template <class V, class Body>
LPK_HD void with_layout(const Layout& layout, const Body& body) {
  using U = typename V::U;
  using H = typename V::H;
  using B = typename V::B;
  constexpr ElementType kHalf = ElementType::kFloat16, kBrain = ElementType::kBfloat16;
  const WordCodes c = layout.codes;
  if (layout.is(kHalf)) {
    body([](H x) { return words_of<V, kHalf>(x); }, [](U x) { return halves_of<V, kHalf>(x); });
  } else if (layout.is(kBrain)) {
    body([](H x) { return words_of<V, kBrain>(x); }, [](U x) { return halves_of<V, kBrain>(x); });
  } else if (layout.is(ElementType::kFloat32)) {
    body([](U x) { return x; }, [](U x) { return x; });
  } else if (layout.upper_halves) {
    body([](B x) { return words_of<V, kHalf>(bytes_as_upper_halves<V>(x)); },
         [](U x) { return upper_halves_as_bytes<V>(halves_of<V, kHalf>(x)); });
  } else if (layout.bytes == 1) {
    body([&](B x) { return value_of_code<V>(c, bytes_as_words<V>(x)); },
         [&](U x) { return words_as_bytes<V>(code_of_value<V>(c, x)); });
  } else if (layout.bytes == 2) {
    body([&](H x) { return value_of_code<V>(c, halves_as_words<V>(x)); },
         [&](U x) { return words_as_halves<V>(code_of_value<V>(c, x)); });
  } else {
    body([&](U x) { return value_of_code<V>(c, x); }, [&](U x) { return code_of_value<V>(c, x); });
  }
}

template <class V>
__attribute__((noinline)) void load_values(const Layout& layout, const void* from, int64_t count,
                                           uint32_t* to) {
  with_layout<V>(layout, [&](const auto& words, const auto& memory) __attribute__((always_inline)) {
    using T = decltype(memory(typename V::U{}));
    const char* p = static_cast<const char*>(from);
    for (int64_t i = 0; i < count; i += V::kWidth, p += sizeof(T)) store(to + i, words(load<T>(p)));
  });
}

// Past the caches if `streamed` and if the memory is aligned for that.
template <class V>
__attribute__((noinline)) void store_values(const Layout& layout, const uint32_t* x, int64_t count,
                                            void* to, bool streamed) {
  with_layout<V>(layout, [&](const auto&, const auto& memory) __attribute__((always_inline)) {
    using U = typename V::U;
    using T = decltype(memory(U{}));
    char* p = static_cast<char*>(to);
    if (streamed && reinterpret_cast<uintptr_t>(to) % sizeof(T) == 0) {
      for (int64_t i = 0; i < count; i += V::kWidth, p += sizeof(T))
        stream(p, memory(load<U>(x + i)));
    } else {
      for (int64_t i = 0; i < count; i += V::kWidth, p += sizeof(T))
        store(p, memory(load<U>(x + i)));
    }
  });
}

}  // namespace
}  // namespace lpk
