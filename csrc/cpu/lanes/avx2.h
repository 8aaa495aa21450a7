// The vocabulary of portable.h in instructions of AVX2: four doubles, eight words.
#pragma once

#include <immintrin.h>

#include "hardware_modes.h"
#include "portable.h"

namespace lpk {

template <>
struct Lanes<Vec<4>::D> : VectorLanes<4> {
  LPK_HD static D all(double x) { return (D)_mm256_set1_pd(x); }
  LPK_HD static D max(D a, D b) { return (D)_mm256_max_pd((__m256d)a, (__m256d)b); }
  LPK_HD static D floor(D x) { return (D)_mm256_floor_pd((__m256d)x); }
  LPK_HD static D fma(D a, D b, D c) {
    return (D)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
  }
  LPK_HD static D trunc(D x) {
    return (D)_mm256_round_pd((__m256d)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }
};

template <>
struct SquareRoot<Bits32<8>::F> {
  LPK_HD static Bits32<8>::F of(Bits32<8>::F x) { return (Bits32<8>::F)_mm256_sqrt_ps((__m256)x); }
};

namespace {

using Eight = Bits32<8>;

template <>
struct BitsOfLanes<Vec<4>> {
  LPK_HD static uint32_t of(Vec<4>::I m) {
    return static_cast<uint32_t>(_mm256_movemask_pd((__m256d)m));
  }
};

template <>
struct BitsOfLanes<Eight> {
  LPK_HD static uint32_t of(Eight::I m) {
    return static_cast<uint32_t>(_mm256_movemask_ps((__m256)m));
  }
};

template <>
LPK_HD Eight::U shift_right<Eight>(Eight::U x, Eight::U n) {
  return (Eight::U)_mm256_srlv_epi32((__m256i)x, (__m256i)n);
}

template <>
LPK_HD Eight::U shift_left<Eight>(Eight::U x, Eight::U n) {
  return (Eight::U)_mm256_sllv_epi32((__m256i)x, (__m256i)n);
}

template <>
LPK_HD Eight::U lanes_at<Eight>(Eight::U x, Eight::U i) {
  return (Eight::U)_mm256_permutevar8x32_epi32((__m256i)x, (__m256i)i);
}

template <>
LPK_HD Eight::U gathered<Eight>(const uint32_t* from, Eight::U i) {
  return (Eight::U)_mm256_i32gather_epi32(reinterpret_cast<const int*>(from), (__m256i)i, 4);
}

template <>
LPK_HD bool all_between<Eight>(Eight::U a, uint32_t low, uint32_t high) {
  using U = Eight::U;
  return lane_bits<Eight>((above<Eight>(U{} + low, a) & (a != 0)) | above<Eight>(a, U{} + high)) ==
         0;
}

template <>
LPK_HD WideProduct<Eight::U> wide_product<Eight>(Eight::U x, uint32_t factor) {
  using U = Eight::U;
  const __m256i m = _mm256_set1_epi64x(factor);
  const __m256i even = _mm256_mul_epu32((__m256i)x, m);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)x, 32), m);
  return {(U)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa),
          (U)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa)};
}

template <>
struct Stream<32> {
  template <class T>
  LPK_HD static void put(void* p, T x) {
    _mm256_stream_si256(static_cast<__m256i*>(p), (__m256i)x);
  }
};

template <>
struct Stream<16> {
  template <class T>
  LPK_HD static void put(void* p, T x) {
    _mm_stream_si128(static_cast<__m128i*>(p), (__m128i)x);
  }
};

// Words of a panel, which bytes hold.
typedef int32_t PanelQuarter __attribute__((vector_size(16)));
LPK_HD void store_bytes_of(const PanelQuarter (&words)[4], int8_t* to) {
  const __m128i low = _mm_packs_epi32((__m128i)words[0], (__m128i)words[1]);
  const __m128i high = _mm_packs_epi32((__m128i)words[2], (__m128i)words[3]);
  store(to, _mm_packs_epi16(low, high));
}

// Four floats of each of up to 8 rows: 128-bit lane j of vector i comes from row 4 j + i.
struct QuarterRows8 {
  using F = __m256;
  static constexpr int kRows = 8;
  LPK_HD static __m256i mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  LPK_HD static __m128 part(const float* p, int cols) {
    return cols == 4 ? _mm_loadu_ps(p) : _mm_maskload_ps(p, _mm256_castsi256_si128(mask(cols)));
  }
  LPK_HD static F gather(const float* from, int64_t stride, int rows, int cols) {
    F x = _mm256_setzero_ps();
    if (rows > 0) x = _mm256_insertf128_ps(x, part(from, cols), 0);
    if (rows > 4) x = _mm256_insertf128_ps(x, part(from + 4 * stride, cols), 1);
    return x;
  }
  LPK_HD static F low(F a, F b) { return _mm256_unpacklo_ps(a, b); }
  LPK_HD static F high(F a, F b) { return _mm256_unpackhi_ps(a, b); }
  LPK_HD static F low_pairs(F a, F b) { return _mm256_shuffle_ps(a, b, 0x44); }
  LPK_HD static F high_pairs(F a, F b) { return _mm256_shuffle_ps(a, b, 0xee); }
  LPK_HD static void put(float* to, F x, int rows) {
    if (rows == kRows) return _mm256_storeu_ps(to, x);
    _mm256_maskstore_ps(to, mask(rows), x);
  }
};

}  // namespace

struct Avx2 {
  static constexpr const char* kName = "avx2";
  static constexpr int kWords = 8, kDoubles = 4, kRegisters = 16;
  static constexpr bool kRoundsAsTold = false, kTransposes = true;
  using Quarter = QuarterRows8;
  using Floats = __m256;
  using Doubles = __m256d;
  LPK_HD static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  LPK_HD static Doubles fma(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }
  LPK_HD static Floats all(float x) { return _mm256_set1_ps(x); }
  LPK_HD static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  LPK_HD static __m256i bytes_as_words(const int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  LPK_HD static __m256i bytes_as_long_words(const int8_t* p) {
    return _mm256_cvtepi8_epi64(_mm_cvtsi32_si128(load<int32_t>(p)));
  }
  LPK_HD static void end_stream() { _mm_sfence(); }
};

}  // namespace lpk
