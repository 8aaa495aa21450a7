// Vectors of doubles and of 32-bit words, as any processor has them, and one lane where it has
// none: the vocabulary in which the rules are written. avx2.h, avx512.h and neon.h write some of
// these functions in instructions of their own; lanes.h includes the files for the instruction set
// that is compiled for.
//
// GCC and Clang vector types: the operators are element-wise, comparisons give a mask of -1 and 0.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "common/update.h"
#include "cpu/drivers/element_types.h"

namespace lpk {

// Vec<W>: W doubles with the integers, 32-bit words and floats that go with them.
template <int W>
struct Vec {
  typedef double D __attribute__((vector_size(W * 8)));
  typedef int64_t I __attribute__((vector_size(W * 8)));
  typedef uint32_t U __attribute__((vector_size(W * 4)));
  typedef float F __attribute__((vector_size(W * 4)));
  static constexpr int kWidth = W;
};

template <>
struct Vec<1> {
  using D = double;
  using I = int64_t;
  using U = uint32_t;
  using F = float;
  static constexpr int kWidth = 1;
};

template <int W>
struct VectorLanes {
  using D = typename Vec<W>::D;
  using Bits = typename Vec<W>::I;

  LPK_HD static Bits bits(D x) { return (Bits)x; }
  LPK_HD static D value(Bits b) { return (D)b; }
};

template <class T>
LPK_HD T load(const void* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

template <class T>
LPK_HD void store(void* p, T x) {
  std::memcpy(p, &x, sizeof x);
}

// Every lane of x as an element of To, a vector of as many lanes.
template <class To, class From>
LPK_HD To converted(From x) {
  if constexpr (std::is_arithmetic_v<From>) {
    return static_cast<To>(x);
  } else {
    return __builtin_convertvector(x, To);
  }
}

// Floats at p as doubles, and back: only for values that float32 holds.
template <class V>
LPK_HD typename V::D load_floats(const float* p) {
  return converted<typename V::D>(load<typename V::F>(p));
}

template <class V>
LPK_HD void store_floats(float* p, typename V::D x) {
  store(p, converted<typename V::F>(x));
}

template <class V>
LPK_HD typename V::D to_doubles(typename V::U x) {
  return converted<typename V::D>(x);
}

// acc + a b, made odd.
template <class D>
LPK_HD D odd_product_sum(D acc, D a, D b) {
  return odd_sum<D>(acc, a * b);
}

namespace {

constexpr uint32_t kSignWord = 0x80000000u;

// Calls run(mode) with a mode known to the compiler.
template <class Run>
auto for_mode(Rounding mode, const Run& run) {
  switch (mode) {
    case Rounding::kNearestEven:
      return run(std::integral_constant<Rounding, Rounding::kNearestEven>());
    case Rounding::kNearestAway:
      return run(std::integral_constant<Rounding, Rounding::kNearestAway>());
    case Rounding::kTowardZero:
      return run(std::integral_constant<Rounding, Rounding::kTowardZero>());
    case Rounding::kTowardPositive:
      return run(std::integral_constant<Rounding, Rounding::kTowardPositive>());
    case Rounding::kTowardNegative:
      return run(std::integral_constant<Rounding, Rounding::kTowardNegative>());
    case Rounding::kToOdd:
      return run(std::integral_constant<Rounding, Rounding::kToOdd>());
    default:
      return run(std::integral_constant<Rounding, Rounding::kStochastic>());
  }
}

// Vectors whose instructions round as they are told, where the instruction set has them.
template <class T>
struct RoundedLanes;

// Bits32<W>: W words, most of them the bits of float32 values.
template <int W>
struct Bits32 {
  typedef uint32_t U __attribute__((vector_size(W * 4)));
  typedef int32_t I __attribute__((vector_size(W * 4)));
  typedef float F __attribute__((vector_size(W * 4)));
  typedef uint16_t H __attribute__((vector_size(W * 2)));
  typedef uint8_t B __attribute__((vector_size(W)));
  static constexpr int kWidth = W;
};

template <>
struct Bits32<1> {
  using U = uint32_t;
  using I = int32_t;
  using F = float;
  using H = uint16_t;
  using B = uint8_t;
  static constexpr int kWidth = 1;
};

template <class V>
LPK_HD typename V::F as_floats(typename V::U x) {
  return same_bits<typename V::F>(x);
}

template <class V>
LPK_HD typename V::U as_words(typename V::F f) {
  return same_bits<typename V::U>(f);
}

// a > b as signed integers, which is how magnitudes of floats are compared.
template <class V>
LPK_HD auto above(typename V::U a, typename V::U b) {
  return (typename V::I)a > (typename V::I)b;
}

template <class V>
LPK_HD uint32_t lane_of(typename V::U x, int lane) {
  if constexpr (V::kWidth == 1) {
    return x;
  } else {
    return x[lane];
  }
}

template <class V>
LPK_HD typename V::U halves_as_words(typename V::H h) {
  return converted<typename V::U>(h);
}

template <class V>
LPK_HD typename V::H words_as_halves(typename V::U x) {
  return converted<typename V::H>(x);
}

template <class V>
LPK_HD typename V::U bytes_as_words(typename V::B b) {
  return converted<typename V::U>(b);
}

template <class V>
LPK_HD typename V::B words_as_bytes(typename V::U x) {
  return converted<typename V::B>(x);
}

// Codes of e5m2 are the upper bytes of float16's.
template <class V>
LPK_HD typename V::H bytes_as_upper_halves(typename V::B b) {
  return words_as_halves<V>(bytes_as_words<V>(b) << 8);
}

template <class V>
LPK_HD typename V::B upper_halves_as_bytes(typename V::H h) {
  return words_as_bytes<V>(halves_as_words<V>(h) >> 8);
}

// x with the lanes exchanged whose numbers differ in the bit kBit.
template <int kBit, class X, int... kLane>
LPK_HD X exchanged(X x, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(x, x, (kLane ^ kBit)...);
}

template <int kBit, class X>
LPK_HD X exchanged(X x) {
  constexpr int kWidth = sizeof x / sizeof x[0];
  return exchanged<kBit>(x, std::make_integer_sequence<int, kWidth>{});
}

// Lane i[l] of x in lane l; of i only the bits count that number a lane.
template <class V>
LPK_HD typename V::U lanes_at(typename V::U x, typename V::U i) {
  if constexpr (V::kWidth == 1) {
    return x;
  } else {
    typename V::U y{};
    for (int l = 0; l < V::kWidth; ++l) y[l] = x[i[l] % V::kWidth];
    return y;
  }
}

// A table of 16 words in registers, read by the low four bits of an index.
template <class V>
struct SixteenWords {
  using U = typename V::U;
  static constexpr int kParts = 16 / V::kWidth;
  U part[kParts];

  explicit SixteenWords(const void* from) { std::memcpy(part, from, sizeof part); }
  LPK_HD U at(U i) const {
    U word = lanes_at<V>(part[0], i);
    for (uint32_t p = 1; p < kParts; ++p)
      word = (i & (16 - V::kWidth)) == p * V::kWidth ? lanes_at<V>(part[p], i) : word;
    return word;
  }
};

// Shifts by a count of each lane's own; 32 and more leave nothing.
template <class V>
LPK_HD typename V::U shift_right(typename V::U x, typename V::U n) {
  return n < 32 ? x >> n : typename V::U{};
}

template <class V>
LPK_HD typename V::U shift_left(typename V::U x, typename V::U n) {
  return n < 32 ? x << n : typename V::U{};
}

// from[i], each lane's own.
template <class V>
LPK_HD typename V::U gathered(const uint32_t* from, typename V::U i) {
  static_assert(V::kWidth == 1, "an instruction set says how its vectors are gathered");
  return from[i];
}

// One bit for each lane of a comparison's result.
template <class V>
struct BitsOfLanes {
  static_assert(V::kWidth == 1, "an instruction set says how it makes bits of its vectors' lanes");
  LPK_HD static uint32_t of(bool m) { return m ? 1 : 0; }
};

template <class V, class M>
LPK_HD uint32_t lane_bits(M m) {
  return BitsOfLanes<V>::of(m);
}

template <class V>
LPK_HD uint32_t equal_lanes(typename V::D a, typename V::D b) {
  return lane_bits<V>(a == b);
}

template <class V>
LPK_HD uint32_t at_least_lanes(typename V::D a, typename V::D b) {
  return lane_bits<V>(a >= b);
}

// Which magnitudes are beyond high, as signed integers.
template <class V>
LPK_HD uint32_t lanes_above(typename V::U a, uint32_t high) {
  return lane_bits<V>(above<V>(a, typename V::U{} + high));
}

// Which floats are not equal.
template <class V>
LPK_HD uint32_t lanes_unlike(typename V::F a, typename V::F b) {
  return lane_bits<V>(a != b);
}

// Whether no magnitude is beyond high.
template <class V>
LPK_HD bool none_above(typename V::U a, uint32_t high) {
  return lanes_above<V>(a, high) == 0;
}

// Whether every magnitude is 0 or in low .. high.
template <class V>
LPK_HD bool all_between(typename V::U a, uint32_t low, uint32_t high) {
  return a == 0 || a - low <= high - low;
}

// Adds 1 to the count of each lane whose word is zero but for a sign.
template <class V>
LPK_HD void add_zero_lanes(typename V::U x, typename V::U& counts) {
  if constexpr (V::kWidth == 1) {
    counts += (x & ~kSignWord) == 0;
  } else {
    counts -= (typename V::U)((x & ~kSignWord) == 0);
  }
}

// x times a constant: the low and the high halves of the 64-bit products.
template <class U>
struct WideProduct {
  U low, high;
};

template <class V>
LPK_HD WideProduct<typename V::U> wide_product(typename V::U x, uint32_t factor) {
  const uint64_t product = uint64_t{factor} * x;
  return {static_cast<uint32_t>(product), static_cast<uint32_t>(product >> 32)};
}

// Stores past the caches, where the instruction set can; p is aligned to the size of x.
template <size_t kBytes>
struct Stream {
  template <class T>
  LPK_HD static void put(void* p, T x) {
    store(p, x);
  }
};

template <class T>
LPK_HD void stream(void* p, T x) {
  Stream<sizeof(T)>::put(p, x);
}

// Half's exponent moves into float's by an addition; its subnormals are integers over a magic
// constant. Additions alone: on many processors a product with a subnormal operand takes a hundred
// cycles.
template <class V>
LPK_HD typename V::U words_of_float16(typename V::H half) {
  using U = typename V::U;
  const U h = halves_as_words<V>(half);
  const U a = h & 0x7fff;
  const U normal = (a << 13) + (112u << 23);
  // 2^-24 is the last place of 0.5.
  const U small = as_words<V>(as_floats<V>(a + 0x3f000000u) - 0.5f);
  U r = above<V>(U{} + 0x400, a) ? small : normal;
  r = above<V>(a, U{} + 0x7bff) ? (a << 13) | 0x7f800000u : r;
  return r | ((h & 0x8000) << 16);
}

// Values that half holds, NaN canonical.
template <class V>
LPK_HD typename V::H float16_of_words(typename V::U x) {
  using U = typename V::U;
  const U a = x & 0x7fffffffu;
  const U normal = (a - (112u << 23)) >> 13;
  const U small = as_words<V>(as_floats<V>(a) + 0.5f) - 0x3f000000u;
  U r = above<V>(U{} + 0x38800000u, a) ? small : normal;
  r = above<V>(a, U{} + 0x7f7fffffu) ? (a >> 13) & 0x7fffu : r;
  return words_as_halves<V>(r | ((x >> 16) & 0x8000u));
}

// float16 or bfloat16 as float32, and back.
template <class V, ElementType kType>
LPK_HD typename V::U words_of(typename V::H h) {
  if constexpr (kType == ElementType::kFloat16) return words_of_float16<V>(h);
  if constexpr (kType == ElementType::kBfloat16) return halves_as_words<V>(h) << 16;
}

template <class V, ElementType kType>
LPK_HD typename V::H halves_of(typename V::U x) {
  if constexpr (kType == ElementType::kFloat16) return float16_of_words<V>(x);
  if constexpr (kType == ElementType::kBfloat16) return words_as_halves<V>(x >> 16);
}

}  // namespace

// An instruction set: how many words, doubles and registers it has, whether its instructions round
// as they are told (`RoundedLanes`), and whether it transposes by quarters.
struct Portable {
  static constexpr const char* kName = "scalar";
  static constexpr int kWords = 1, kDoubles = 1, kRegisters = 16;
  static constexpr bool kRoundsAsTold = false, kTransposes = false;
  // Makes streamed stores visible to whoever waits for this thread.
  LPK_HD static void end_stream() {}
};

}  // namespace lpk
