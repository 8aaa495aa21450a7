// The arithmetic of certified sums: vectors of floats, and one rule for each way of rounding.
#pragma once

#include <cmath>

#include "certificate.h"
#include "chunks.h"

namespace lpk {
namespace {

// W floats with what the kernel needs beyond operators.
template <int W>
struct Floats;

#if defined(__AVX512F__)
template <>
struct Floats<16> {
  using F = __m512;
  using V = Vec<8>;
  static constexpr int kRows = 12;
  static constexpr int kFewerRows = 8;
  // The nine taps of a kernel are one group.
  static constexpr int kSpreadRows = 9;
  // So many panels at a time against one row.
  static constexpr int kRowPanels = 8;
  LPK_HD static F load(const float* p) { return _mm512_loadu_ps(p); }
  LPK_HD static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  LPK_HD static F all(float x) { return _mm512_set1_ps(x); }
  LPK_HD static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  LPK_HD static F max(F a, F b) { return _mm512_max_ps(a, b); }
  LPK_HD static F min(F a, F b) { return _mm512_min_ps(a, b); }
  LPK_HD static F with_sign_of(F magnitude, F s) { return lpk::with_sign_of(magnitude, s); }
  using I = __m512i;
  LPK_HD static I all_words(int x) { return _mm512_set1_epi32(x); }
  LPK_HD static I words(F x) { return _mm512_castps_si512(x); }
  LPK_HD static F sum_of_words(I a, I b) { return _mm512_castsi512_ps(_mm512_add_epi32(a, b)); }
  LPK_HD static I shift_left(I x, I n) { return _mm512_sllv_epi32(x, n); }
  LPK_HD static I shift_right(I x, I n) { return _mm512_srav_epi32(x, n); }
  LPK_HD static I shift_right_zeros(I x, I n) { return _mm512_srlv_epi32(x, n); }
  // `next`, but `sum` in the lanes whose bit is set in `marks`.
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    return _mm512_mask_mov_ps(next, static_cast<__mmask16>(marks), sum);
  }
  LPK_HD static __m512i load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
  LPK_HD static F masked(F x, int32_t bits) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(bits)));
  }
  LPK_HD static F either(F a, F b) {
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  LPK_HD static bool any(F x, int32_t bits) {
    return _mm512_test_epi32_mask(_mm512_castps_si512(x), _mm512_set1_epi32(bits)) != 0;
  }
};
#elif defined(__AVX2__)
template <>
struct Floats<8> {
  using F = __m256;
  using V = Vec<4>;
  static constexpr int kRows = 5;
  static constexpr int kFewerRows = 4;
  static constexpr int kSpreadRows = 5;
  static constexpr int kRowPanels = 5;
  LPK_HD static F load(const float* p) { return _mm256_loadu_ps(p); }
  LPK_HD static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  LPK_HD static F all(float x) { return _mm256_set1_ps(x); }
  LPK_HD static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  LPK_HD static F max(F a, F b) { return _mm256_max_ps(a, b); }
  LPK_HD static F min(F a, F b) { return _mm256_min_ps(a, b); }
  using I = __m256i;
  LPK_HD static I all_words(int x) { return _mm256_set1_epi32(x); }
  LPK_HD static I words(F x) { return _mm256_castps_si256(x); }
  LPK_HD static F sum_of_words(I a, I b) { return _mm256_castsi256_ps(_mm256_add_epi32(a, b)); }
  LPK_HD static I shift_left(I x, I n) { return _mm256_sllv_epi32(x, n); }
  LPK_HD static I shift_right(I x, I n) { return _mm256_srav_epi32(x, n); }
  LPK_HD static I shift_right_zeros(I x, I n) { return _mm256_srlv_epi32(x, n); }
  LPK_HD static F with_sign_of(F magnitude, F s) {
    return _mm256_or_ps(magnitude, _mm256_and_ps(s, _mm256_set1_ps(-0.0f)));
  }
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(marks)), bits);
    return _mm256_blendv_ps(next, sum, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bits)));
  }
  LPK_HD static F masked(F x, int32_t bits) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(bits)));
  }
  LPK_HD static F either(F a, F b) { return _mm256_or_ps(a, b); }
  LPK_HD static bool any(F x, int32_t bits) {
    return _mm256_testz_si256(_mm256_castps_si256(x), _mm256_set1_epi32(bits)) == 0;
  }
};
#endif

constexpr int32_t kBeyondBound = 0x40000000;
constexpr int32_t kExponentMask = 0x7f800000;

struct NoDraws {};

// How a running sum is carried, and whether the certificate has a bound to watch.
template <class S>
struct PlainSum {
  static constexpr bool kTracked = true;
  LPK_HD typename S::F enter(typename S::F sum) const { return sum; }
  LPK_HD typename S::F leave(typename S::F sum) const { return sum; }
};

// Sums in float32: to nearest, or made odd.
template <class S>
struct NearestSum : PlainSum<S> {
  using F = typename S::F;
  LPK_HD F fma(F a, F b, F sum) const { return S::fma(a, b, sum); }
  LPK_HD F add(F p, F sum) const { return p + sum; }
};

#if defined(__AVX512F__)
template <class S>
struct OddSum : PlainSum<S> {
  LPK_HD __m512 fma(__m512 a, __m512 b, __m512 sum) const {
    return sum_of_product<Rounding::kToOdd>(a, b, sum);
  }
  LPK_HD __m512 add(__m512 p, __m512 sum) const { return sum_alone<Rounding::kToOdd>(p, sum); }
};
#endif

// How a certified sum is taken and rounded. kKeepsZeros: the sign of a sum that becomes zero is
// kept, so that a tap that adds nothing must be passed over. kClosesChunks: it rounds sums of two
// sums too.
template <class S, class Sum>
struct SplitRule : Sum {
  using F = typename S::F;
  static constexpr bool kKeepsZeros = false;
  static constexpr bool kStochastic = false;
  static constexpr bool kClosesChunks = true;
  using LaneState = NoDraws;
  template <int kGroup>
  using PanelState = NoDraws;
  static constexpr int kRows = S::kRows;
  F factor;

  explicit SplitRule(const Format& f) : factor(S::all(std::ldexp(1.0f, 23 - f.man_bits) + 1.0f)) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    const F wide = s * factor;
    return wide + (s - wide);
  }
};

template <class S, class Sum>
struct FloorRule : Sum {
  using F = typename S::F;
  static constexpr bool kKeepsZeros = true;
  static constexpr bool kStochastic = false;
  static constexpr bool kClosesChunks = true;
  using LaneState = NoDraws;
  template <int kGroup>
  using PanelState = NoDraws;
  static constexpr int kRows = S::kRows;
  F magic, min_normal;

  FloorRule(const Format& f, int shift)
      : magic(S::all(std::ldexp(1.5f, 23 - f.man_bits))),
        min_normal(S::all(std::ldexp(1.0f, f.emin + shift))) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    const F binade = S::max(S::masked(s, kExponentMask), min_normal);
    const F wide = S::fma(binade, magic, s);
    return S::with_sign_of(S::fnma(binade, magic, wide), s);
  }
};

#if defined(__AVX512F__)
template <class S>
struct TruncationRule : PlainSum<S> {
  static constexpr bool kKeepsZeros = false;
  static constexpr bool kStochastic = false;
  static constexpr bool kClosesChunks = true;
  using LaneState = NoDraws;
  template <int kGroup>
  using PanelState = NoDraws;
  static constexpr int kRows = S::kRows;
  __m512i keep;

  explicit TruncationRule(const Format& f) : keep(_mm512_set1_epi32(-(1 << (23 - f.man_bits)))) {}
  LPK_HD __m512 fma(__m512 a, __m512 b, __m512 sum) const {
    return _mm512_fmadd_round_ps(a, b, sum, kZero);
  }
  LPK_HD __m512 add(__m512 p, __m512 sum) const { return _mm512_add_round_ps(p, sum, kZero); }
  template <class Draws>
  LPK_HD __m512 round(__m512 s, const Draws&) const {
    return bits_as_float(_mm512_and_si512(float_as_bits(s), keep));
  }
};

template <class S>
struct StochasticRule : TruncationRule<S> {
  static constexpr bool kStochastic = true;
  static constexpr bool kClosesChunks = false;
  using LaneState = LaneDraws;
  template <int kGroup>
  using PanelState = PanelDraws<typename S::V, kGroup>;
  static constexpr int kRows = 8;
  using TruncationRule<S>::TruncationRule;
  LPK_HD __m512 round(__m512 s, const LaneDraws& draws) const {
    const __m512i sum = _mm512_add_epi32(float_as_bits(s), draws.odd_doubled());
    return bits_as_float(_mm512_and_si512(sum, this->keep));
  }
};

// Products rounded to nearest in a narrow format: exact in float32 before.
struct RoundedProduct {
  NarrowRule<Rounding::kNearestEven> rule;
  RoundedProduct(const Format& f, int shift) : rule(f, 0, shift) {}
  LPK_HD __m512 operator()(__m512 a, __m512 b) const { return rule(_mm512_mul_ps(a, b), {}); }
};
#endif

struct ExactProduct {
  ExactProduct(const Format&, int) {}
};

}  // namespace
}  // namespace lpk
