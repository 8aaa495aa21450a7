// Vectors of float32 or double as the certified rules take them.
#pragma once

#include "cpu/sums/certified/operand_range.h"
#include "cpu/sums/exact/chunks.h"
#include "lanes.h"

namespace lpk {
namespace {

// Operations on vectors of any width, beyond operators, by way of their bits.
template <class T, class Integer, class Unsigned, int W>
struct LaneBits {
  using Scalar = T;
  using Word = Integer;
  typedef T F __attribute__((vector_size(W * sizeof(T))));
  typedef Integer I __attribute__((vector_size(W * sizeof(T))));
  typedef Unsigned U __attribute__((vector_size(W * sizeof(T))));
  static constexpr int kWidth = W;
  static constexpr bool kDouble = sizeof(T) == 8;
  static constexpr Precision kPrecision = kDouble ? double_precision() : single_precision();
  static constexpr int kWordBits = 8 * sizeof(T);
  // The exponent, and its highest bit, which numbers from 2 on have.
  static constexpr Integer kExponent = kDouble ? Integer(0x7ff0000000000000) : 0x7f800000;
  static constexpr Integer kFromTwo = Integer{1} << (kWordBits - 2);

  LPK_HD static F operands(const T* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  LPK_HD static I all_words(Integer x) { return I{} + x; }
  LPK_HD static I words(F x) { return (I)x; }
  LPK_HD static F sum_of_words(I a, I b) { return (F)(a + b); }
  LPK_HD static I shift_left(I x, I n) { return x << n; }
  LPK_HD static I shift_right(I x, I n) { return x >> n; }
  LPK_HD static I shift_right_zeros(I x, I n) { return (I)((U)x >> (U)n); }
  // x + n, and one more in the lanes that have the bit.
  LPK_HD static I raised(I x, I n, I bit) { return x + n - (I)((x & bit) == bit); }
  LPK_HD static F masked(F x, Integer bits) { return (F)((I)x & bits); }
  LPK_HD static F either(F a, F b) { return (F)((I)a | (I)b); }
};

// W floats, and W doubles: sums are float32 in memory.
template <int W>
struct FloatBits : LaneBits<float, int32_t, uint32_t, W> {
  using F = typename LaneBits<float, int32_t, uint32_t, W>::F;
  LPK_HD static F load(const float* p) { return FloatBits::operands(p); }
  LPK_HD static void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
};
template <int W>
struct DoubleBits : LaneBits<double, int64_t, uint64_t, W> {
  using V = Vec<W>;
  using F = typename LaneBits<double, int64_t, uint64_t, W>::F;
  LPK_HD static F load(const float* p) { return load_floats<V>(p); }
  LPK_HD static void store(float* p, F x) { store_floats<V>(p, x); }
};

template <int W>
struct Floats;
template <int W>
struct Doubles;

}  // namespace
}  // namespace lpk

#if defined(__AVX512F__)
#include "certified_avx512.h"
#elif defined(__AVX2__)
#include "certified_avx2.h"
#elif defined(LPK_NEON)
#include "certified_neon.h"
#endif
