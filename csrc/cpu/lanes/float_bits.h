// Vectors of 32-bit words, most of them the bits of float32 values, for the instruction set that
// this file is compiled for; one word where it has no vectors.
#pragma once

#include "cpu/drivers/element_types.h"
#include "vector.h"

namespace lpk {
namespace {

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
  typename V::F f;
  std::memcpy(&f, &x, sizeof f);
  return f;
}

template <class V>
LPK_HD typename V::U as_words(typename V::F f) {
  typename V::U x;
  std::memcpy(&x, &f, sizeof x);
  return x;
}

// a > b as signed integers, which is how magnitudes of floats are compared.
template <class V>
LPK_HD auto above(typename V::U a, typename V::U b) {
  return (typename V::I)a > (typename V::I)b;
}

template <class V>
LPK_HD typename V::U halves_as_words(typename V::H h) {
  if constexpr (V::kWidth == 1) {
    return h;
#if defined(__AVX512F__)
  } else if constexpr (V::kWidth == 16) {
    return (typename V::U)_mm512_cvtepu16_epi32((__m256i)h);
#endif
  } else {
    return __builtin_convertvector(h, typename V::U);
  }
}

template <class V>
LPK_HD typename V::H words_as_halves(typename V::U x) {
  if constexpr (V::kWidth == 1) {
    return static_cast<uint16_t>(x);
#if defined(__AVX512F__)
  } else if constexpr (V::kWidth == 16) {
    return (typename V::H)_mm512_cvtepi32_epi16((__m512i)x);
#endif
  } else {
    return __builtin_convertvector(x, typename V::H);
  }
}

template <class V>
LPK_HD typename V::U bytes_as_words(typename V::B b) {
  if constexpr (V::kWidth == 1) {
    return b;
#if defined(__AVX512F__)
  } else if constexpr (V::kWidth == 16) {
    return (typename V::U)_mm512_cvtepu8_epi32((__m128i)b);
#endif
  } else {
    return __builtin_convertvector(b, typename V::U);
  }
}

template <class V>
LPK_HD typename V::B words_as_bytes(typename V::U x) {
  if constexpr (V::kWidth == 1) {
    return static_cast<uint8_t>(x);
#if defined(__AVX512F__)
  } else if constexpr (V::kWidth == 16) {
    return (typename V::B)_mm512_cvtepi32_epi8((__m512i)x);
#endif
  } else {
    return __builtin_convertvector(x, typename V::B);
  }
}

// Shifts by a count of each lane's own; 32 and more leave nothing.
template <class V>
LPK_HD typename V::U shift_right(typename V::U x, typename V::U n) {
#if defined(__AVX512F__)
  if constexpr (V::kWidth == 16) return (typename V::U)_mm512_srlv_epi32((__m512i)x, (__m512i)n);
#endif
#if defined(__AVX2__)
  if constexpr (V::kWidth == 8) return (typename V::U)_mm256_srlv_epi32((__m256i)x, (__m256i)n);
#endif
  if constexpr (V::kWidth == 1) return n < 32 ? x >> n : 0;
}

template <class V>
LPK_HD typename V::U shift_left(typename V::U x, typename V::U n) {
#if defined(__AVX512F__)
  if constexpr (V::kWidth == 16) return (typename V::U)_mm512_sllv_epi32((__m512i)x, (__m512i)n);
#endif
#if defined(__AVX2__)
  if constexpr (V::kWidth == 8) return (typename V::U)_mm256_sllv_epi32((__m256i)x, (__m256i)n);
#endif
  if constexpr (V::kWidth == 1) return n < 32 ? x << n : 0;
}

// Whether every magnitude is 0 or in low .. high.
template <class V>
LPK_HD bool all_between(typename V::U a, uint32_t low, uint32_t high) {
#if defined(__AVX512F__)
  if constexpr (V::kWidth == 16) {
    const __m512i span = _mm512_set1_epi32(static_cast<int>(high - low));
    const __mmask16 outside = _mm512_cmpgt_epu32_mask((__m512i)(a - low), span);
    return _mm512_mask_test_epi32_mask(outside, (__m512i)a, (__m512i)a) == 0;
  }
#endif
#if defined(__AVX2__)
  if constexpr (V::kWidth == 8) {
    using U = typename V::U;
    const auto outside = (above<V>(U{} + low, a) & (a != 0)) | above<V>(a, U{} + high);
    return _mm256_movemask_ps((__m256)outside) == 0;
  }
#endif
  if constexpr (V::kWidth == 1) return a == 0 || a - low <= high - low;
}

// Whether no magnitude is beyond high.
template <class V>
LPK_HD bool none_above(typename V::U a, uint32_t high) {
#if defined(__AVX512F__)
  if constexpr (V::kWidth == 16)
    return _mm512_cmpgt_epi32_mask((__m512i)a, _mm512_set1_epi32(static_cast<int>(high))) == 0;
#endif
#if defined(__AVX2__)
  if constexpr (V::kWidth == 8)
    return _mm256_movemask_ps((__m256)above<V>(a, typename V::U{} + high)) == 0;
#endif
  if constexpr (V::kWidth == 1) return a <= high;
}

// Stores past the caches, where the instruction set can; p is aligned to the size of x.
template <class T>
LPK_HD void stream(void* p, T x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 64) {
    _mm512_stream_si512(static_cast<__m512i*>(p), (__m512i)x);
    return;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(T) == 32) {
    _mm256_stream_si256(static_cast<__m256i*>(p), (__m256i)x);
    return;
  }
  if constexpr (sizeof(T) == 16) {
    _mm_stream_si128(static_cast<__m128i*>(p), (__m128i)x);
    return;
  }
#endif
  store(p, x);
}

// Makes streamed stores visible to whoever waits for this thread.
LPK_HD void end_stream() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

// Half's exponent moves into float's by an addition; its subnormals are integers over a magic
// constant. Additions alone: on many processors a product with a subnormal operand takes a hundred
// cycles.
template <class V>
LPK_HD typename V::U words_of_float16(typename V::H half) {
#if defined(__AVX512F__)
  // Exact, subnormals too, in every mode of the processor.
  if constexpr (V::kWidth == 16) return (typename V::U)_mm512_cvtph_ps((__m256i)half);
#endif
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
#if defined(__AVX512F__)
  if constexpr (V::kWidth == 16)
    return (typename V::H)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#endif
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
}  // namespace lpk
