// Vectors of float32 or double as the certified rules take them.
#pragma once

#include "cpu/lanes/lanes.h"
#include "cpu/sums/exact/chunks.h"
#include "operand_range.h"

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

#if defined(__AVX512F__)
template <>
struct Floats<16> : FloatBits<16> {
  using V = Vec<8>;
  static constexpr bool kFewRegisters = false;
  static constexpr int kRows = 12;
  static constexpr int kFewerRows = 8;
  // The nine taps of a kernel are one group.
  static constexpr int kSpreadRows = 9;
  // Rows and panels of a group where the panels share an A that is spread; no rows: none.
  static constexpr int kSharedRows = 4;
  static constexpr int kSharedPanels = 3;
  // Keeps a loaded value in a register: the compiler would load it for every use.
#if defined(LPK_SOFTWARE_AVX512)
  LPK_HD static void hold(F*) {}
#else
  LPK_HD static void hold(F* x) { asm("" : "+v"(*x)); }
#endif
  // How many panels are multiplied with one row at a time.
  static constexpr int kRowPanels = 8;
  LPK_HD static F all(double x) { return _mm512_set1_ps(static_cast<float>(x)); }
  LPK_HD static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  LPK_HD static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  LPK_HD static F max(F a, F b) { return _mm512_max_ps(a, b); }
  LPK_HD static F min(F a, F b) { return _mm512_min_ps(a, b); }
  LPK_HD static F with_sign_of(F magnitude, F s) {
    return RoundedLanes<float>::with_sign_of(magnitude, s);
  }
  // max(|x|, least) with the sign of x.
  LPK_HD static F at_least(F x, F least) { return _mm512_range_ps(x, least, 0x3); }
  // min(|x|, most) with the sign of x.
  LPK_HD static F at_most(F x, F most) { return _mm512_range_ps(x, most, 0x2); }
  // `next`, but `sum` in the lanes whose bit is set in `marks`.
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    return _mm512_mask_mov_ps(next, static_cast<__mmask16>(marks), sum);
  }
  // Rounded so, inside what Direction<kMode> says.
  template <int kMode>
  using Direction = UsualRounding;
  template <int kMode>
  LPK_HD static F fma_rounded(F a, F b, F c) {
    return _mm512_fmadd_round_ps(a, b, c, kMode);
  }
  // In Direction<kDown>.
  LPK_HD static F fma_up(F a, F b, F c) { return fma_rounded<kUp>(a, b, c); }
  // `odd` in the lanes where its last bit is set.
  LPK_HD static F odd_one(F odd, F even) {
    return _mm512_mask_mov_ps(even, _mm512_test_epi32_mask((__m512i)odd, _mm512_set1_epi32(1)),
                              odd);
  }
  // `yes` in the lanes where x >= zero.
  LPK_HD static F at_least_zero(F x, F zero, F yes, F no) {
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(x, zero, _CMP_GE_OQ), yes);
  }
  using Draws = LaneDraws<RoundedLanes<float>>;
  // x + carry in the lanes with a sign, or without.
  template <bool kSign>
  LPK_HD static I carried(I x, I carry) {
    const __m512i bits = (__m512i)x;
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    const __mmask16 lanes =
        kSign ? _mm512_test_epi32_mask(bits, sign) : _mm512_testn_epi32_mask(bits, sign);
    return (I)_mm512_mask_add_epi32(bits, lanes, bits, (__m512i)carry);
  }
  LPK_HD static I raised(I x, I n, I bit) {
    const __mmask16 lanes = _mm512_test_epi32_mask((__m512i)x, (__m512i)bit);
    const __m512i sum = _mm512_add_epi32((__m512i)x, (__m512i)n);
    return (I)_mm512_mask_add_epi32(sum, lanes, sum, _mm512_set1_epi32(1));
  }
  // The larger magnitude; whether one is `limit` or more.
  LPK_HD static F larger(F a, F b) { return at_least(a, b); }
  LPK_HD static bool reaches(F most, F limit) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(most), limit, _CMP_GE_OQ) != 0;
  }
  LPK_HD static bool any(F x, Word bits) {
    return _mm512_test_epi32_mask(_mm512_castps_si512(x), _mm512_set1_epi32(bits)) != 0;
  }
};

template <>
struct Doubles<8> : DoubleBits<8> {
  static constexpr bool kFewRegisters = false;
  static constexpr int kRows = 8;
  static constexpr int kFewerRows = 6;
  static constexpr int kSpreadRows = 9;
  static constexpr int kSharedRows = 0;
  static constexpr int kRowPanels = 4;
  LPK_HD static F all(double x) { return _mm512_set1_pd(x); }
  LPK_HD static F fma(F a, F b, F c) { return _mm512_fmadd_pd(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm512_fnmadd_pd(a, b, c); }
  LPK_HD static F fms(F a, F b, F c) { return _mm512_fmsub_pd(a, b, c); }
  template <int kMode>
  using Direction = UsualRounding;
  template <int kMode>
  LPK_HD static F fma_rounded(F a, F b, F c) {
    return _mm512_fmadd_round_pd(a, b, c, kMode);
  }
  LPK_HD static F fma_up(F a, F b, F c) { return fma_rounded<kUp>(a, b, c); }
  LPK_HD static F odd_one(F odd, F even) {
    return _mm512_mask_mov_pd(even, _mm512_test_epi64_mask((__m512i)odd, _mm512_set1_epi64(1)),
                              odd);
  }
  LPK_HD static F at_least_zero(F x, F zero, F yes, F no) {
    return _mm512_mask_mov_pd(no, _mm512_cmp_pd_mask(x, zero, _CMP_GE_OQ), yes);
  }
  LPK_HD static F max(F a, F b) { return _mm512_max_pd(a, b); }
  LPK_HD static F min(F a, F b) { return _mm512_min_pd(a, b); }
  LPK_HD static F with_sign_of(F magnitude, F s) {
    return RoundedLanes<double>::with_sign_of(magnitude, s);
  }
  LPK_HD static F at_least(F x, F least) { return _mm512_range_pd(x, least, 0x3); }
  LPK_HD static F at_most(F x, F most) { return _mm512_range_pd(x, most, 0x2); }
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    return _mm512_mask_mov_pd(next, static_cast<__mmask8>(marks), sum);
  }
  LPK_HD static bool any(F x, Word bits) {
    return _mm512_test_epi64_mask(_mm512_castpd_si512(x), _mm512_set1_epi64(bits)) != 0;
  }
};
#elif defined(__AVX2__)
// 2 draw + 1 of one draw in each lane, moved to bit `place`: `LaneDraws` without rotations.
struct ShiftedDraws {
  __m256i words, mask, one;
  __m128i right, left;  // one of them 0
  int place;

  ShiftedDraws() = default;
  ShiftedDraws(const DrawLayout& layout, int at)
      : mask(_mm256_set1_epi32(static_cast<int>(layout.mask() << (at + 1)))),
        one(_mm256_set1_epi32(1 << at)),
        place(at) {}

  LPK_HD void take(const uint32_t* panel_words) {
    words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel_words));
  }
  LPK_HD void from(int bit) {
    const int distance = bit - place - 1;
    right = _mm_cvtsi32_si128(std::max(distance, 0));
    left = _mm_cvtsi32_si128(std::max(-distance, 0));
  }
  LPK_HD __m256i added_to(__m256i bits) const {
    const __m256i moved = _mm256_sll_epi32(_mm256_srl_epi32(words, right), left);
    return _mm256_add_epi32(bits, _mm256_or_si256(_mm256_and_si256(moved, mask), one));
  }
};

template <class Bits>
struct Avx2Lanes : Bits {
  using F = typename Bits::F;
  using I = typename Bits::I;
  static constexpr bool kFewRegisters = true;
  // The processor is told the direction, because its instructions take none.
  template <int kMode>
  using Direction = ProcessorRounding<kMode>;
  // The sign bit is flipped: a compiler may leave out the negation of a negation.
  LPK_HD static F negated(F x) {
    return (F)((I)x ^ Bits::all_words(typename Bits::Word{1} << (Bits::kWordBits - 1)));
  }
  LPK_HD static F with_sign_of(F magnitude, F s) {
    return Bits::either(magnitude,
                        Bits::masked(s, typename Bits::Word{1} << (Bits::kWordBits - 1)));
  }
};

template <>
struct Floats<8> : Avx2Lanes<FloatBits<8>> {
  using V = Vec<4>;
  static constexpr int kRows = 5;
  static constexpr int kFewerRows = 4;
  static constexpr int kSpreadRows = 5;
  static constexpr int kSharedRows = 0;
  static constexpr int kRowPanels = 5;
  LPK_HD static F all(double x) { return _mm256_set1_ps(static_cast<float>(x)); }
  LPK_HD static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  LPK_HD static F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
  LPK_HD static F max(F a, F b) { return _mm256_max_ps(a, b); }
  LPK_HD static F min(F a, F b) { return _mm256_min_ps(a, b); }
  LPK_HD static F at_least(F x, F least) {
    return with_sign_of(max(masked(x, INT32_MAX), least), x);
  }
  LPK_HD static F at_most(F x, F most) { return max(min(x, most), -most); }
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    const I bits{1, 2, 4, 8, 16, 32, 64, 128};
    const I set = all_words(static_cast<int32_t>(marks)) & bits;
    return _mm256_blendv_ps(next, sum, (F)(set == bits));
  }
  template <int>
  LPK_HD static F fma_rounded(F a, F b, F c) {
    return fma(a, b, c);
  }
  // In Direction<kDown>: the negative sum rounded down.
  LPK_HD static F fma_up(F a, F b, F c) { return negated(_mm256_fnmsub_ps(a, b, c)); }
  LPK_HD static F at_least_zero(F x, F zero, F yes, F no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, zero, _CMP_GE_OQ));
  }
  using Draws = ShiftedDraws;
  // `odd` in the lanes where its last bit is set.
  LPK_HD static F odd_one(F odd, F even) {
    return _mm256_blendv_ps(even, odd, (F)(words(odd) << 31));
  }
  template <bool kSign>
  LPK_HD static I carried(I x, I carry) {
    const I sign = x >> 31;
    return x + (kSign ? carry & sign : carry & ~sign);
  }
  LPK_HD static F larger(F a, F b) { return max(masked(a, INT32_MAX), masked(b, INT32_MAX)); }
  LPK_HD static bool reaches(F most, F limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(masked(most, INT32_MAX), limit, _CMP_GE_OQ)) != 0;
  }
  LPK_HD static bool any(F x, Word bits) {
    return _mm256_testz_si256(_mm256_castps_si256(x), _mm256_set1_epi32(bits)) == 0;
  }
};

template <>
struct Doubles<4> : Avx2Lanes<DoubleBits<4>> {
  static constexpr int kRows = 2;
  static constexpr int kFewerRows = 2;
  static constexpr int kSpreadRows = 2;
  static constexpr int kSharedRows = 0;
  static constexpr int kRowPanels = 1;
  LPK_HD static F all(double x) { return _mm256_set1_pd(x); }
  LPK_HD static F fma(F a, F b, F c) { return _mm256_fmadd_pd(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm256_fnmadd_pd(a, b, c); }
  LPK_HD static F fms(F a, F b, F c) { return _mm256_fmsub_pd(a, b, c); }
  template <int>
  LPK_HD static F fma_rounded(F a, F b, F c) {
    return fma(a, b, c);
  }
  LPK_HD static F fma_up(F a, F b, F c) { return negated(_mm256_fnmsub_pd(a, b, c)); }
  LPK_HD static F odd_one(F odd, F even) {
    return _mm256_blendv_pd(even, odd, (F)(words(odd) << 63));
  }
  LPK_HD static F at_least_zero(F x, F zero, F yes, F no) {
    return _mm256_blendv_pd(no, yes, _mm256_cmp_pd(x, zero, _CMP_GE_OQ));
  }
  LPK_HD static F max(F a, F b) { return _mm256_max_pd(a, b); }
  LPK_HD static F min(F a, F b) { return _mm256_min_pd(a, b); }
  LPK_HD static F at_most(F x, F most) { return max(min(x, most), -most); }
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    const I bits{1, 2, 4, 8};
    const I set = all_words(marks) & bits;
    return _mm256_blendv_pd(next, sum, (F)(set == bits));
  }
  LPK_HD static bool any(F x, Word bits) {
    return _mm256_testz_si256(_mm256_castpd_si256(x), _mm256_set1_epi64x(bits)) == 0;
  }
};
#endif

}  // namespace
}  // namespace lpk
