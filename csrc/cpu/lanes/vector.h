// Vectors of doubles as lanes of the rounding rules, for the instruction set that this file is
// compiled for.
//
// GCC and Clang vector types: the operators are element-wise, comparisons give a mask of -1 and 0.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/accumulate.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

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
  static constexpr int kWidth = 1;
};

template <int W>
struct VectorLanes {
  using D = typename Vec<W>::D;
  using Bits = typename Vec<W>::I;

  LPK_HD static Bits bits(D x) { return (Bits)x; }
  LPK_HD static D value(Bits b) { return (D)b; }
};

template <>
struct Lanes<Vec<4>::D> : VectorLanes<4> {
#if defined(__AVX__)
  LPK_HD static D all(double x) { return (D)_mm256_set1_pd(x); }
  LPK_HD static D max(D a, D b) { return (D)_mm256_max_pd((__m256d)a, (__m256d)b); }
  LPK_HD static D floor(D x) { return (D)_mm256_floor_pd((__m256d)x); }
  LPK_HD static D trunc(D x) {
    return (D)_mm256_round_pd((__m256d)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }
#endif
};
template <>
struct Lanes<Vec<8>::D> : VectorLanes<8> {
#if defined(__AVX512F__)
  LPK_HD static D all(double x) { return (D)_mm512_set1_pd(x); }
  LPK_HD static D max(D a, D b) { return (D)_mm512_max_pd((__m512d)a, (__m512d)b); }
  LPK_HD static D floor(D x) { return (D)_mm512_floor_pd((__m512d)x); }
  LPK_HD static D trunc(D x) {
    return (D)_mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }
#endif
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

// Floats at p as doubles, and back: only for values that float32 holds.
template <class V>
LPK_HD typename V::D load_floats(const float* p) {
  if constexpr (V::kWidth == 1) {
    return *p;
  } else {
    return __builtin_convertvector(load<typename V::F>(p), typename V::D);
  }
}

template <class V>
LPK_HD void store_floats(float* p, typename V::D x) {
  if constexpr (V::kWidth == 1) {
    *p = static_cast<float>(x);
  } else {
    store(p, __builtin_convertvector(x, typename V::F));
  }
}

template <class V>
LPK_HD typename V::D to_doubles(typename V::U x) {
  if constexpr (V::kWidth == 1) {
    return static_cast<double>(x);
#if defined(__AVX512F__)
  } else if constexpr (V::kWidth == 8) {
    return (typename V::D)_mm512_cvtepu32_pd((__m256i)x);
#endif
  } else {
    return __builtin_convertvector(x, typename V::D);
  }
}

#if defined(__AVX512F__)
// The exact sum made odd, as odd_of_bracket of float_lane_rules.h has it.
LPK_HD Vec<8>::D odd_of_bracket(__m512d down, __m512d up) {
  const __mmask8 odd = _mm512_test_epi64_mask(_mm512_castpd_si512(down), _mm512_set1_epi64(1));
  return (Vec<8>::D)_mm512_mask_mov_pd(up, odd, down);
}

template <>
LPK_HD Vec<8>::D odd_sum<Vec<8>::D>(Vec<8>::D a, Vec<8>::D b) {
  return odd_of_bracket(
      _mm512_add_round_pd((__m512d)a, (__m512d)b, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC),
      _mm512_add_round_pd((__m512d)a, (__m512d)b, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
}
#endif

// acc + a b, made odd.
template <class D>
LPK_HD D odd_product_sum(D acc, D a, D b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(D) == 64) {
    return odd_of_bracket(_mm512_fmadd_round_pd((__m512d)a, (__m512d)b, (__m512d)acc,
                                                _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC),
                          _mm512_fmadd_round_pd((__m512d)a, (__m512d)b, (__m512d)acc,
                                                _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
  }
#endif
  return odd_sum<D>(acc, a * b);
}

}  // namespace lpk
