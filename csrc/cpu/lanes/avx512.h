// The vocabulary of portable.h in instructions of AVX-512: eight doubles, sixteen words.
#pragma once

#include "avx2.h"
#include "rounded_lanes.h"

namespace lpk {

template <>
struct Lanes<Vec<8>::D> : VectorLanes<8> {
  LPK_HD static D all(double x) { return (D)_mm512_set1_pd(x); }
  LPK_HD static D max(D a, D b) { return (D)_mm512_max_pd((__m512d)a, (__m512d)b); }
  LPK_HD static D floor(D x) { return (D)_mm512_floor_pd((__m512d)x); }
  LPK_HD static D fma(D a, D b, D c) {
    return (D)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
  }
  LPK_HD static D trunc(D x) {
    return (D)_mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }
};

// The exact sum made odd: see odd_of_bracket.
template <>
LPK_HD Vec<8>::D odd_sum<Vec<8>::D>(Vec<8>::D a, Vec<8>::D b) {
  return (Vec<8>::D)sum_alone<RoundedLanes<double>, Rounding::kToOdd>((__m512d)a, (__m512d)b);
}

template <>
LPK_HD Vec<8>::D odd_product_sum<Vec<8>::D>(Vec<8>::D acc, Vec<8>::D a, Vec<8>::D b) {
  return (Vec<8>::D)sum_of_product<RoundedLanes<double>, Rounding::kToOdd>((__m512d)a, (__m512d)b,
                                                                           (__m512d)acc);
}

template <>
struct SquareRoot<Bits32<16>::F> {
  LPK_HD static Bits32<16>::F of(Bits32<16>::F x) {
    return (Bits32<16>::F)_mm512_sqrt_ps((__m512)x);
  }
};

// 512-bit shifts and multiplications share one port; bytes are moved on the other.
template <>
struct UpperHalf<Bits32<16>::U> {
  using U = Bits32<16>::U;
  LPK_HD static U of(U x) {
    const __m512i places = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1));
    return (U)_mm512_shuffle_epi8((__m512i)x, places);
  }
};

template <>
LPK_HD Vec<8>::D to_doubles<Vec<8>>(Vec<8>::U x) {
  return (Vec<8>::D)_mm512_cvtepu32_pd((__m256i)x);
}

namespace {

using Sixteen = Bits32<16>;

template <>
struct BitsOfLanes<Vec<8>> {
  LPK_HD static uint32_t of(Vec<8>::I m) { return _mm512_movepi64_mask((__m512i)m); }
};

template <>
struct BitsOfLanes<Sixteen> {
  LPK_HD static uint32_t of(Sixteen::I m) { return _mm512_movepi32_mask((__m512i)m); }
};

template <>
LPK_HD uint32_t equal_lanes<Vec<8>>(Vec<8>::D a, Vec<8>::D b) {
  return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_EQ_OQ);
}

template <>
LPK_HD uint32_t at_least_lanes<Vec<8>>(Vec<8>::D a, Vec<8>::D b) {
  return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GE_OQ);
}

template <>
LPK_HD Sixteen::U halves_as_words<Sixteen>(Sixteen::H h) {
  return (Sixteen::U)_mm512_cvtepu16_epi32((__m256i)h);
}

template <>
LPK_HD Sixteen::H words_as_halves<Sixteen>(Sixteen::U x) {
  return (Sixteen::H)_mm512_cvtepi32_epi16((__m512i)x);
}

template <>
LPK_HD Sixteen::H bytes_as_upper_halves<Sixteen>(Sixteen::B b) {
  return (Sixteen::H)_mm256_slli_epi16(_mm256_cvtepu8_epi16((__m128i)b), 8);
}

template <>
LPK_HD Sixteen::B upper_halves_as_bytes<Sixteen>(Sixteen::H h) {
  return (Sixteen::B)_mm256_cvtepi16_epi8(_mm256_srli_epi16((__m256i)h, 8));
}

template <>
LPK_HD Sixteen::U shift_right<Sixteen>(Sixteen::U x, Sixteen::U n) {
  return (Sixteen::U)_mm512_srlv_epi32((__m512i)x, (__m512i)n);
}

template <>
LPK_HD Sixteen::U lanes_at<Sixteen>(Sixteen::U x, Sixteen::U i) {
  return (Sixteen::U)_mm512_permutexvar_epi32((__m512i)i, (__m512i)x);
}

template <>
LPK_HD Sixteen::U gathered<Sixteen>(const uint32_t* from, Sixteen::U i) {
  return (Sixteen::U)_mm512_i32gather_epi32((__m512i)i, from, 4);
}

template <>
LPK_HD Sixteen::U shift_left<Sixteen>(Sixteen::U x, Sixteen::U n) {
  return (Sixteen::U)_mm512_sllv_epi32((__m512i)x, (__m512i)n);
}

template <>
LPK_HD uint32_t lanes_above<Sixteen>(Sixteen::U a, uint32_t high) {
  return _mm512_cmpgt_epi32_mask((__m512i)a, _mm512_set1_epi32(static_cast<int>(high)));
}

template <>
LPK_HD uint32_t lanes_unlike<Sixteen>(Sixteen::F a, Sixteen::F b) {
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NEQ_UQ);
}

template <>
LPK_HD bool all_between<Sixteen>(Sixteen::U a, uint32_t low, uint32_t high) {
  const __m512i span = _mm512_set1_epi32(static_cast<int>(high - low));
  const __mmask16 outside = _mm512_cmpgt_epu32_mask((__m512i)(a - low), span);
  return _mm512_mask_test_epi32_mask(outside, (__m512i)a, (__m512i)a) == 0;
}

template <>
LPK_HD void add_zero_lanes<Sixteen>(Sixteen::U x, Sixteen::U& counts) {
  const __mmask16 zero = _mm512_testn_epi32_mask((__m512i)x, _mm512_set1_epi32(0x7fffffff));
  const __m512i c = (__m512i)counts;
  counts = (Sixteen::U)_mm512_mask_add_epi32(c, zero, c, _mm512_set1_epi32(1));
}

template <>
LPK_HD WideProduct<Sixteen::U> wide_product<Sixteen>(Sixteen::U x, uint32_t factor) {
  using U = Sixteen::U;
  const __m512i m = _mm512_set1_epi64(factor);
  const __m512i even = _mm512_mul_epu32((__m512i)x, m);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)x, 32), m);
  return {(U)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)),
          (U)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd)};
}

template <>
struct Stream<64> {
  template <class T>
  LPK_HD static void put(void* p, T x) {
    _mm512_stream_si512(static_cast<__m512i*>(p), (__m512i)x);
  }
};

// Exact, subnormals too, in every mode of the processor.
template <>
LPK_HD Sixteen::U words_of_float16<Sixteen>(Sixteen::H half) {
  return (Sixteen::U)_mm512_cvtph_ps((__m256i)half);
}

template <>
LPK_HD Sixteen::H float16_of_words<Sixteen>(Sixteen::U x) {
  return (Sixteen::H)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
}

// As QuarterRows8, of up to 16 rows.
struct QuarterRows16 {
  using F = __m512;
  static constexpr int kRows = 16;
  LPK_HD static __m128 part(const float* p, int cols) {
    return cols == 4 ? _mm_loadu_ps(p)
                     : _mm_maskz_loadu_ps(static_cast<__mmask8>((1 << cols) - 1), p);
  }
  LPK_HD static F gather(const float* from, int64_t stride, int rows, int cols) {
    if (rows == kRows && cols == 4) {
      F x = _mm512_castps128_ps512(_mm_loadu_ps(from));
      x = _mm512_insertf32x4(x, _mm_loadu_ps(from + 4 * stride), 1);
      x = _mm512_insertf32x4(x, _mm_loadu_ps(from + 8 * stride), 2);
      return _mm512_insertf32x4(x, _mm_loadu_ps(from + 12 * stride), 3);
    }
    F x = _mm512_setzero_ps();
    if (rows > 0) x = _mm512_insertf32x4(x, part(from, cols), 0);
    if (rows > 4) x = _mm512_insertf32x4(x, part(from + 4 * stride, cols), 1);
    if (rows > 8) x = _mm512_insertf32x4(x, part(from + 8 * stride, cols), 2);
    if (rows > 12) x = _mm512_insertf32x4(x, part(from + 12 * stride, cols), 3);
    return x;
  }
  LPK_HD static F low(F a, F b) { return _mm512_unpacklo_ps(a, b); }
  LPK_HD static F high(F a, F b) { return _mm512_unpackhi_ps(a, b); }
  LPK_HD static F low_pairs(F a, F b) { return _mm512_shuffle_ps(a, b, 0x44); }
  LPK_HD static F high_pairs(F a, F b) { return _mm512_shuffle_ps(a, b, 0xee); }
  LPK_HD static void put(float* to, F x, int rows) {
    if (rows == kRows) return _mm512_storeu_ps(to, x);
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1 << rows) - 1), x);
  }
};

}  // namespace

struct Avx512 {
  static constexpr const char *kName = "avx512", *kHalfName = "avx512fp16";
  static constexpr int kWords = 16, kDoubles = 8, kRegisters = 32;
  static constexpr bool kRoundsAsTold = true, kTransposes = true;
  using Quarter = QuarterRows16;
  using Floats = __m512;
  using Doubles = __m512d;
  LPK_HD static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  LPK_HD static Doubles fma(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }
  LPK_HD static Floats all(float x) { return _mm512_set1_ps(x); }
  LPK_HD static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  LPK_HD static __m512i bytes_as_words(const int8_t* p) {
    return _mm512_cvtepi8_epi32(load<__m128i>(p));
  }
  LPK_HD static __m512i bytes_as_long_words(const int8_t* p) {
    return _mm512_cvtepi8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  LPK_HD static void end_stream() { _mm_sfence(); }
};

}  // namespace lpk
