// Vectors of the certified rules in instructions of AVX2; included by certified_lanes.h.
#pragma once

namespace lpk {
namespace {

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
  static constexpr int kSpreadRows = 5;
  static constexpr int kRowPanels = 5;
  LPK_HD static F all(double x) { return _mm256_set1_ps(static_cast<float>(x)); }
  LPK_HD static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  LPK_HD static F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
  LPK_HD static F split(F s, F factor) { return fms(s, factor, fms(s, factor, s)); }
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
  static constexpr int kSpreadRows = 2;
  static constexpr int kRowPanels = 1;
  LPK_HD static F all(double x) { return _mm256_set1_pd(x); }
  LPK_HD static F fma(F a, F b, F c) { return _mm256_fmadd_pd(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm256_fnmadd_pd(a, b, c); }
  LPK_HD static F fms(F a, F b, F c) { return _mm256_fmsub_pd(a, b, c); }
  LPK_HD static F split(F s, F factor) { return fms(s, factor, fms(s, factor, s)); }
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

}  // namespace
}  // namespace lpk
