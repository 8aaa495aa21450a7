// The arithmetic of certified sums: vectors of floats, and one rule for each way of rounding.
#pragma once

#include <cmath>

#include "certificate.h"
#include "chunks.h"

namespace lpk {
namespace {

// What vectors of floats of any width can do beyond operators, by way of their bits.
template <int W>
struct FloatBits {
  typedef float F __attribute__((vector_size(W * 4)));
  typedef int32_t I __attribute__((vector_size(W * 4)));
  typedef uint32_t U __attribute__((vector_size(W * 4)));
  LPK_HD static F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  LPK_HD static void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
  LPK_HD static I all_words(int x) { return I{} + x; }
  LPK_HD static I words(F x) { return (I)x; }
  LPK_HD static F sum_of_words(I a, I b) { return (F)(a + b); }
  LPK_HD static I shift_left(I x, I n) { return x << n; }
  LPK_HD static I shift_right(I x, I n) { return x >> n; }
  LPK_HD static I shift_right_zeros(I x, I n) { return (I)((U)x >> (U)n); }
  LPK_HD static F masked(F x, int32_t bits) { return (F)((I)x & bits); }
  LPK_HD static F either(F a, F b) { return (F)((I)a | (I)b); }
};

// W floats.
template <int W>
struct Floats;

#if defined(__AVX512F__)
template <>
struct Floats<16> : FloatBits<16> {
  using V = Vec<8>;
  static constexpr int kRows = 12;
  static constexpr int kFewerRows = 8;
  // The nine taps of a kernel are one group.
  static constexpr int kSpreadRows = 9;
  // So many panels at a time against one row.
  static constexpr int kRowPanels = 8;
  LPK_HD static F all(float x) { return _mm512_set1_ps(x); }
  LPK_HD static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  LPK_HD static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  LPK_HD static F max(F a, F b) { return _mm512_max_ps(a, b); }
  LPK_HD static F min(F a, F b) { return _mm512_min_ps(a, b); }
  LPK_HD static F with_sign_of(F magnitude, F s) { return lpk::with_sign_of(magnitude, s); }
  // max(|x|, least) with the sign of x.
  LPK_HD static F at_least(F x, F least) { return _mm512_range_ps(x, least, 0x3); }
  // min(|x|, most) with the sign of x.
  LPK_HD static F at_most(F x, F most) { return _mm512_range_ps(x, most, 0x2); }
  // `next`, but `sum` in the lanes whose bit is set in `marks`.
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    return _mm512_mask_mov_ps(next, static_cast<__mmask16>(marks), sum);
  }
  LPK_HD static bool any(F x, int32_t bits) {
    return _mm512_test_epi32_mask(_mm512_castps_si512(x), _mm512_set1_epi32(bits)) != 0;
  }
};
#elif defined(__AVX2__)
template <>
struct Floats<8> : FloatBits<8> {
  using V = Vec<4>;
  static constexpr int kRows = 5;
  static constexpr int kFewerRows = 4;
  static constexpr int kSpreadRows = 5;
  static constexpr int kRowPanels = 5;
  LPK_HD static F all(float x) { return _mm256_set1_ps(x); }
  LPK_HD static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  LPK_HD static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  LPK_HD static F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
  LPK_HD static F max(F a, F b) { return _mm256_max_ps(a, b); }
  LPK_HD static F min(F a, F b) { return _mm256_min_ps(a, b); }
  LPK_HD static F with_sign_of(F magnitude, F s) { return either(magnitude, masked(s, INT32_MIN)); }
  LPK_HD static F at_least(F x, F least) {
    return with_sign_of(max(masked(x, INT32_MAX), least), x);
  }
  LPK_HD static F at_most(F x, F most) { return max(min(x, most), -most); }
  LPK_HD static F keep(uint32_t marks, F sum, F next) {
    const I bits{1, 2, 4, 8, 16, 32, 64, 128};
    const I set = all_words(static_cast<int32_t>(marks)) & bits;
    return _mm256_blendv_ps(next, sum, (F)(set == bits));
  }
  LPK_HD static bool any(F x, int32_t bits) {
    return _mm256_testz_si256(_mm256_castps_si256(x), _mm256_set1_epi32(bits)) == 0;
  }
};
#endif

constexpr int32_t kBeyondBound = 0x40000000;
constexpr int32_t kExponentMask = 0x7f800000;

struct NoDraws {};

// What a rule of sums declares about itself.
//   kTracked       the certificate has a bound to watch
//   kKeepsZeros    the sign of a sum that becomes zero is kept, so that a tap that adds nothing
//   must
//                  be passed over
//   kClosesChunks  it rounds sums of two sums too
template <class S, bool kTrackedSums, bool kKeptZeros, bool kClosing>
struct RuleOf {
  static constexpr bool kTracked = kTrackedSums;
  static constexpr bool kKeepsZeros = kKeptZeros;
  static constexpr bool kClosesChunks = kClosing;
  static constexpr bool kStochastic = false;
  static constexpr int kRows = S::kRows;
  using LaneState = NoDraws;
  template <int kGroup>
  using PanelState = NoDraws;
};

// A running sum carried as it is.
template <class S>
struct PlainSum {
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

// Rounding to q = man_bits + 1 bits with K = 2^(24 - q), for q <= 11, in two operations:
//   u = fl(K s - s),  h = K s - u
// For s in [1, 2), up to a power of two and the sign, K s lies on the grid of 2^(1 - q) K, and so
// does u wherever K s - s >= K: then h is s rounded to that grid, to nearest. Of a tie s is even as
// an integer, so that the parity of u is that of h: ties go to even. Below, where s - 1 <
// 2^-(24 - q) (1 + 2^-(23 - q)), the grid of u is half as wide; s is nearer to 1 than a quarter of
// 2^(1 - q) if 24 - q >= q + 2, and both grids give 1. h is exact, and a zero keeps its sign.
constexpr int kShortBits = 10;
inline bool splits_shortly(const Format& f) { return f.man_bits <= kShortBits; }

template <class S, class Sum>
struct ShortSplitRule : RuleOf<S, true, false, true>, Sum {
  using F = typename S::F;
  F factor;

  explicit ShortSplitRule(const Format& f) : factor(S::all(std::ldexp(1.0f, 23 - f.man_bits))) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    return S::fms(s, factor, S::fms(s, factor, s));
  }
};

// The same for formats that saturate: sums may pass the largest value, which takes their place.
template <class S, class Sum>
struct SaturatedRule : RuleOf<S, false, false, true>, Sum {
  using F = typename S::F;
  ShortSplitRule<S, Sum> split;
  F most;

  SaturatedRule(const Format& f, int shift)
      : split(f), most(S::all(static_cast<float>(std::ldexp(f.max, shift)))) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws& draws) const {
    return S::at_most(split.round(s, draws), most);
  }
};

template <class S, class Sum>
struct SplitRule : RuleOf<S, true, false, true>, Sum {
  using F = typename S::F;
  F factor;

  explicit SplitRule(const Format& f) : factor(S::all(std::ldexp(1.0f, 23 - f.man_bits) + 1.0f)) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    const F wide = s * factor;
    return wide + (s - wide);
  }
};

template <class S, class Sum>
struct FloorRule : RuleOf<S, true, true, true>, Sum {
  using F = typename S::F;
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
// The short split with K t for K s, where t is s but never below 1.5 min_normal: from there up it
// is the rule above; below, K t - s stays in the binade of K min_normal, whose grid is that of the
// subnormals, and K t is an even multiple of it. Only the sign of a zero is lost.
template <class S, class Sum>
struct ShortFloorRule : RuleOf<S, true, true, true>, Sum {
  using F = typename S::F;
  F factor, least;

  ShortFloorRule(const Format& f, int shift)
      : factor(S::all(std::ldexp(1.0f, 23 - f.man_bits))),
        least(S::all(std::ldexp(1.5f, f.emin + shift))) {}
  template <class Draws>
  LPK_HD F round(F s, const Draws&) const {
    const F wide = S::at_least(s, least);
    return S::with_sign_of(S::fms(wide, factor, S::fms(wide, factor, s)), s);
  }
};

template <class S>
struct TruncationRule : RuleOf<S, true, false, true>, PlainSum<S> {
  typename S::I keep;

  explicit TruncationRule(const Format& f) : keep(S::all_words(-(1 << (23 - f.man_bits)))) {}
  LPK_HD __m512 fma(__m512 a, __m512 b, __m512 sum) const {
    return _mm512_fmadd_round_ps(a, b, sum, kZero);
  }
  LPK_HD __m512 add(__m512 p, __m512 sum) const { return _mm512_add_round_ps(p, sum, kZero); }
  template <class Draws>
  LPK_HD __m512 round(__m512 s, const Draws&) const {
    return (__m512)(S::words(s) & keep);
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
    const __m512 sum = S::sum_of_words(S::words(s), (typename S::I)draws.odd_doubled());
    return TruncationRule<S>::round(sum, draws);
  }
};

// Products rounded to nearest in a narrow format: exact in float32 before.
struct RoundedProduct {
  NarrowRule<Rounding::kNearestEven> rule;
  RoundedProduct(const Format& f, int shift) : rule(f, 0, shift) {}
  LPK_HD __m512 operator()(__m512 a, __m512 b) const { return rule(_mm512_mul_ps(a, b), {}); }
};
#endif

// The same where they cannot overflow, for sums that are never -0, as the sign of a zero is lost:
// with t = p, but never below min_normal,
//   u = fl(K t + p),  h = u - K t
// For p in [1, 2) as above, u leaves the binade of K only where p > 2 - 2 / K, which both grids
// round to 2 if 24 - q >= q + 1; products of at most 23 bits are even as integers, so that K p lies
// on the wider grid too, and ties go to even.
template <class S>
struct ShortProduct {
  using F = typename S::F;
  F factor, least;
  ShortProduct(const Format& f, int shift)
      : factor(S::all(std::ldexp(1.0f, 23 - f.man_bits))),
        least(S::all(std::ldexp(1.0f, f.emin + shift))) {}
  LPK_HD F operator()(F a, F b) const {
    const F p = a * b;
    const F t = S::at_least(p, least);
    return S::fnma(t, factor, S::fma(t, factor, p));
  }
};

struct ExactProduct {
  ExactProduct(const Format&, int) {}
};

}  // namespace
}  // namespace lpk
