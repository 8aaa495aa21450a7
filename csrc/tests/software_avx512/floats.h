// float32 and float64 vectors of 512 bits.
#pragma once

#include "halves_of.h"

// Does an operation in the rounding mode of an instruction that carries one, by the processor's own
// mode.
template <class V, class Operation>
V software_rounded(int mode, V a, V b, V c, Operation operation) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr((saved & ~0x6000u) | (mode & 3u) << 13);
  // The result is computed after the mode is set and before it is restored.
  asm volatile("" : "+m"(a), "+m"(b), "+m"(c));
  V result = operation(a, b, c);
  asm volatile("" : "+m"(result));
  _mm_setcsr(saved);
  return result;
}

template <class Int, class V>
SOFTWARE V software_choose(Int chosen, V a, V b) {
  return (V)(((Int)a & chosen) | ((Int)b & ~chosen));
}

// Bits 0 to 3 say when a predicate is true: where the first operand is less, equal or greater, or
// where one of them is NaN. The upper half of the predicates differs in exceptions alone.
template <class Int, class V>
SOFTWARE Int software_compare(V a, V b, int predicate) {
  constexpr int kHolds[16] = {0x2, 0x1, 0x3, 0x8, 0xd, 0xe, 0xc, 0x7,
                              0xa, 0x9, 0xb, 0x0, 0x5, 0x6, 0x4, 0xf};
  const int holds = kHolds[predicate & 15];
  Int r = {};
  if (holds & 1) r |= (Int)(a < b);
  if (holds & 2) r |= (Int)(a == b);
  if (holds & 4) r |= (Int)(a > b);
  if (holds & 8) r |= (Int)(a != a) | (Int)(b != b);
  return r;
}

// The smaller or the larger magnitude with the sign of a: the two forms that csrc/cpu takes.
template <class Int, class V>
SOFTWARE V software_range(V a, V b, int form) {
  const Int sign = (Int)(-V{});
  const V x = (V)((Int)a & ~sign), y = (V)((Int)b & ~sign);
  if (form != 2 && form != 3) __builtin_trap();
  // Where one is NaN, the other is taken.
  const Int first = form == 2 ? (Int)(x <= y) : (Int)(x >= y);
  const Int take = (first | (Int)(b != b)) & (Int)(a == a);
  const V larger = (V)(((Int)x & take) | ((Int)y & ~take));
  return (V)((Int)larger | ((Int)a & sign));
}

SOFTWARE __m512 _mm512_set1_ps(float x) {
  return software_whole<__m512>(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
SOFTWARE __m512d _mm512_set1_pd(double x) {
  return software_whole<__m512d>(_mm256_set1_pd(x), _mm256_set1_pd(x));
}
SOFTWARE __m512 _mm512_setzero_ps() { return __m512{}; }
SOFTWARE __m512 _mm512_loadu_ps(const void* p) { return software_load<__m512>(p); }
SOFTWARE __m512d _mm512_loadu_pd(const void* p) { return software_load<__m512d>(p); }
SOFTWARE void _mm512_storeu_ps(void* p, __m512 x) { std::memcpy(p, &x, sizeof x); }

// Memory that the mask leaves out is not touched.
SOFTWARE __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float* p) {
  __m512 x = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) x[i] = p[i];
  }
  return x;
}
SOFTWARE __m128 _mm_maskz_loadu_ps(__mmask8 mask, const float* p) {
  __m128 x = {};
  for (int i = 0; i < 4; ++i) {
    if (mask >> i & 1) x[i] = p[i];
  }
  return x;
}
SOFTWARE void _mm512_mask_storeu_ps(float* p, __mmask16 mask, __m512 x) {
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) p[i] = x[i];
  }
}

SOFTWARE __m512i _mm512_castps_si512(__m512 x) { return (__m512i)x; }
SOFTWARE __m512i _mm512_castpd_si512(__m512d x) { return (__m512i)x; }
SOFTWARE __m512 _mm512_castsi512_ps(__m512i x) { return (__m512)x; }
SOFTWARE __m512d _mm512_castsi512_pd(__m512i x) { return (__m512d)x; }
SOFTWARE __m512 _mm512_insertf32x4(__m512 x, __m128 quarter, int place) {
  std::memcpy(reinterpret_cast<char*>(&x) + 16 * place, &quarter, sizeof quarter);
  return x;
}
SOFTWARE __m512 _mm512_castps128_ps512(__m128 x) { return _mm512_insertf32x4(__m512{}, x, 0); }

SOFTWARE __m512 _mm512_and_ps(__m512 a, __m512 b) { return (__m512)((__m512i)a & (__m512i)b); }
SOFTWARE __m512d _mm512_and_pd(__m512d a, __m512d b) { return (__m512d)((__m512i)a & (__m512i)b); }
SOFTWARE __m512 _mm512_abs_ps(__m512 x) { return (__m512)((SoftwareWords)x & 0x7fffffffu); }
SOFTWARE __m512d _mm512_abs_pd(__m512d x) {
  return (__m512d)((SoftwareLongs)x & 0x7fffffffffffffffu);
}

SOFTWARE __m512 _mm512_sqrt_ps(__m512 x) {
  return software_whole<__m512>(_mm256_sqrt_ps(software_half<__m256>(x, 0)),
                                _mm256_sqrt_ps(software_half<__m256>(x, 1)));
}

// The result is the second where the two are equal or one is NaN.
SOFTWARE __m512 _mm512_max_ps(__m512 a, __m512 b) {
  return software_by_halves(a, b, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); });
}
SOFTWARE __m512 _mm512_min_ps(__m512 a, __m512 b) {
  return software_by_halves(a, b, [](__m256 x, __m256 y) { return _mm256_min_ps(x, y); });
}
SOFTWARE __m512d _mm512_max_pd(__m512d a, __m512d b) {
  return software_by_halves(a, b, [](__m256d x, __m256d y) { return _mm256_max_pd(x, y); });
}
SOFTWARE __m512d _mm512_min_pd(__m512d a, __m512d b) {
  return software_by_halves(a, b, [](__m256d x, __m256d y) { return _mm256_min_pd(x, y); });
}
SOFTWARE __m512 _mm512_range_ps(__m512 a, __m512 b, int form) {
  return software_range<SoftwareInts>(a, b, form);
}
SOFTWARE __m512d _mm512_range_pd(__m512d a, __m512d b, int form) {
  return software_range<SoftwareLongInts>(a, b, form);
}
SOFTWARE __m512d _mm512_floor_pd(__m512d x) {
  return software_by_halves(x, x, [](__m256d h, __m256d) { return _mm256_floor_pd(h); });
}
SOFTWARE __m512d _mm512_roundscale_pd(__m512d x, int mode) {
  if (mode != (_MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)) __builtin_trap();
  return software_by_halves(x, x, [](__m256d h, __m256d) {
    return _mm256_round_pd(h, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  });
}

SOFTWARE __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return software_by_halves(a, b, c,
                            [](__m256 x, __m256 y, __m256 z) { return _mm256_fmadd_ps(x, y, z); });
}
SOFTWARE __m512 _mm512_fmsub_ps(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, -c); }
SOFTWARE __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(-a, b, c); }
SOFTWARE __m512d _mm512_fmadd_pd(__m512d a, __m512d b, __m512d c) {
  return software_by_halves(
      a, b, c, [](__m256d x, __m256d y, __m256d z) { return _mm256_fmadd_pd(x, y, z); });
}
SOFTWARE __m512d _mm512_fmsub_pd(__m512d a, __m512d b, __m512d c) {
  return _mm512_fmadd_pd(a, b, -c);
}
SOFTWARE __m512d _mm512_fnmadd_pd(__m512d a, __m512d b, __m512d c) {
  return _mm512_fmadd_pd(-a, b, c);
}

inline __m512 _mm512_add_round_ps(__m512 a, __m512 b, int mode) {
  return software_rounded(mode, a, b, a, [](__m512 x, __m512 y, __m512) { return x + y; });
}
inline __m512 _mm512_mul_round_ps(__m512 a, __m512 b, int mode) {
  return software_rounded(mode, a, b, a, [](__m512 x, __m512 y, __m512) { return x * y; });
}
inline __m512 _mm512_fmadd_round_ps(__m512 a, __m512 b, __m512 c, int mode) {
  return software_rounded(mode, a, b, c,
                          [](__m512 x, __m512 y, __m512 z) { return _mm512_fmadd_ps(x, y, z); });
}
inline __m512d _mm512_add_round_pd(__m512d a, __m512d b, int mode) {
  return software_rounded(mode, a, b, a, [](__m512d x, __m512d y, __m512d) { return x + y; });
}
inline __m512d _mm512_mul_round_pd(__m512d a, __m512d b, int mode) {
  return software_rounded(mode, a, b, a, [](__m512d x, __m512d y, __m512d) { return x * y; });
}
inline __m512d _mm512_fmadd_round_pd(__m512d a, __m512d b, __m512d c, int mode) {
  return software_rounded(mode, a, b, c,
                          [](__m512d x, __m512d y, __m512d z) { return _mm512_fmadd_pd(x, y, z); });
}

SOFTWARE __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  return software_mask16(software_compare<SoftwareInts>(a, b, predicate));
}
SOFTWARE __mmask16 _mm512_mask_cmp_ps_mask(__mmask16 mask, __m512 a, __m512 b, int predicate) {
  return mask & _mm512_cmp_ps_mask(a, b, predicate);
}
SOFTWARE __mmask8 _mm512_cmp_pd_mask(__m512d a, __m512d b, int predicate) {
  return software_mask8(software_compare<SoftwareLongInts>(a, b, predicate));
}
SOFTWARE __m512 _mm512_mask_mov_ps(__m512 other, __mmask16 mask, __m512 x) {
  return software_choose(software_lanes16(mask), x, other);
}
SOFTWARE __m512d _mm512_mask_mov_pd(__m512d other, __mmask8 mask, __m512d x) {
  return software_choose(software_lanes8(mask), x, other);
}
SOFTWARE __m512 _mm512_maskz_max_ps(__mmask16 mask, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(__m512{}, mask, _mm512_max_ps(a, b));
}
SOFTWARE __m512d _mm512_maskz_max_pd(__mmask8 mask, __m512d a, __m512d b) {
  return _mm512_mask_mov_pd(__m512d{}, mask, _mm512_max_pd(a, b));
}

SOFTWARE __m512 _mm512_unpacklo_ps(__m512 a, __m512 b) {
  return software_by_halves(a, b, [](__m256 x, __m256 y) { return _mm256_unpacklo_ps(x, y); });
}
SOFTWARE __m512 _mm512_unpackhi_ps(__m512 a, __m512 b) {
  return software_by_halves(a, b, [](__m256 x, __m256 y) { return _mm256_unpackhi_ps(x, y); });
}
SOFTWARE __m512 _mm512_shuffle_ps(__m512 a, __m512 b, int choice) {
  __m512 r;
  for (int i = 0; i < 16; ++i) {
    const int lane = i / 4 * 4 + (choice >> 2 * (i % 4) & 3);
    r[i] = i % 4 < 2 ? a[lane] : b[lane];
  }
  return r;
}

SOFTWARE __m512d _mm512_cvtps_pd(__m256 x) { return __builtin_convertvector(x, __m512d); }
SOFTWARE __m256 _mm512_cvtpd_ps(__m512d x) { return __builtin_convertvector(x, __m256); }
SOFTWARE __m512 _mm512_cvtepi32_ps(__m512i x) {
  return __builtin_convertvector((SoftwareInts)x, __m512);
}
SOFTWARE __m512d _mm512_cvtepi32_pd(__m256i x) {
  return __builtin_convertvector((SoftwareHalfInts)x, __m512d);
}
SOFTWARE __m512d _mm512_cvtepu32_pd(__m256i x) {
  return __builtin_convertvector((SoftwareHalfWords)x, __m512d);
}
