// Half precision: the conversions of AVX512F and the arithmetic of AVX512-FP16.
#pragma once

#include "floats.h"
#include "words.h"

SOFTWARE __m512 _mm512_cvtph_ps(__m256i x) {
  return software_whole<__m512>(_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                                _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
template <int kMode>
SOFTWARE __m256i software_cvtps_ph(__m512 x) {
  return _mm256_setr_m128i(_mm256_cvtps_ph(software_half<__m256>(x, 0), kMode),
                           _mm256_cvtps_ph(software_half<__m256>(x, 1), kMode));
}
SOFTWARE __m256i _mm512_cvtps_ph(__m512 x, int mode) {
  switch (mode & 3) {
    case _MM_FROUND_TO_NEG_INF:
      return software_cvtps_ph<_MM_FROUND_TO_NEG_INF>(x);
    case _MM_FROUND_TO_POS_INF:
      return software_cvtps_ph<_MM_FROUND_TO_POS_INF>(x);
    case _MM_FROUND_TO_ZERO:
      return software_cvtps_ph<_MM_FROUND_TO_ZERO>(x);
    default:
      return software_cvtps_ph<_MM_FROUND_TO_NEAREST_INT>(x);
  }
}

SOFTWARE __m512h _mm512_castsi512_ph(__m512i x) { return (__m512h)x; }
SOFTWARE __m512i _mm512_castph_si512(__m512h x) { return (__m512i)x; }
SOFTWARE __m512h _mm512_setzero_ph() { return (__m512h)__m512i{}; }
SOFTWARE __m512h _mm512_set1_ph(_Float16 x) {
  uint16_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (__m512h)_mm512_set1_epi32(static_cast<int>(bits * 0x10001u));
}
SOFTWARE __m512h _mm512_mask_blend_ph(__mmask32 mask, __m512h other, __m512h x) {
  typedef uint16_t Lanes __attribute__((vector_size(64)));
  Lanes r = (Lanes)other;
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) r[i] = ((Lanes)x)[i];
  }
  return (__m512h)r;
}

// a b + c exactly, rounded once. In double the product of two halves is exact; the sum is made odd
// there, then again in float32, which holds all of half precision with three bits to spare.
inline __m256 software_odd_multiply_add(__m512d a, __m512d b, __m512d c, bool down) {
  const __m512d product = a * b;
  const __m512d sum = product + c;
  const __m512d part = sum - product;
  const __m512d error = (product - (sum - part)) + (c - part);
  const SoftwareLongInts bits = (SoftwareLongInts)sum;
  const SoftwareLongInts outward = (error > 0) == (sum > 0);
  const SoftwareLongInts inexact = (SoftwareLongInts)((error > 0) | (error < 0)) & ~-(bits & 1);
  SoftwareLongInts odd = bits + (inexact & ((outward & 1) | (~outward & -1)));
  // Two addends that cancel give the zero -0 where sums are rounded down.
  const SoftwareLongInts signs = (SoftwareLongInts)product ^ (SoftwareLongInts)c;
  if (down) odd |= (SoftwareLongInts)(sum == 0) & signs & INT64_MIN;
  const int64_t dropped = (int64_t{1} << 29) - 1;
  const SoftwareLongInts lost = (odd & dropped) != 0;
  return __builtin_convertvector((__m512d)((odd & ~dropped) | (lost & (dropped + 1))), __m256);
}

// Everything but the last rounding is to nearest, whatever the processor's mode is.
inline __m512h software_quarters(__m512h a, __m512h b, __m512h c, int mode) {
  const bool down = (mode & 3) == _MM_FROUND_TO_NEG_INF;
  __m512h result;
  for (int half = 0; half < 2; ++half) {
    __m512 x[3];
    const __m512h operands[3] = {a, b, c};
    for (int i = 0; i < 3; ++i) {
      x[i] = _mm512_cvtph_ps(software_half<__m256i>(operands[i], half));
    }
    const auto part = [&](int quarter) {
      return software_odd_multiply_add(_mm512_cvtps_pd(software_half<__m256>(x[0], quarter)),
                                       _mm512_cvtps_pd(software_half<__m256>(x[1], quarter)),
                                       _mm512_cvtps_pd(software_half<__m256>(x[2], quarter)), down);
    };
    const __m256i rounded = _mm512_cvtps_ph(software_whole<__m512>(part(0), part(1)), mode);
    std::memcpy(reinterpret_cast<char*>(&result) + 32 * half, &rounded, sizeof rounded);
  }
  return result;
}
inline __m512h software_multiply_add(__m512h a, __m512h b, __m512h c, int mode) {
  if (mode == _MM_FROUND_CUR_DIRECTION) mode = _mm_getcsr() >> 13 & 3;
  return software_rounded(
      _MM_FROUND_TO_NEAREST_INT, a, b, c,
      [mode](__m512h x, __m512h y, __m512h z) { return software_quarters(x, y, z, mode); });
}

SOFTWARE __m512h software_negated(__m512h x) { return (__m512h)((SoftwareWords)x ^ 0x80008000u); }
SOFTWARE __m512h _mm512_fmadd_round_ph(__m512h a, __m512h b, __m512h c, int mode) {
  return software_multiply_add(a, b, c, mode);
}
SOFTWARE __m512h _mm512_fmsub_round_ph(__m512h a, __m512h b, __m512h c, int mode) {
  return software_multiply_add(a, b, software_negated(c), mode);
}
SOFTWARE __m512h _mm512_fnmadd_round_ph(__m512h a, __m512h b, __m512h c, int mode) {
  return software_multiply_add(software_negated(a), b, c, mode);
}
// These are 1 a + b, 1 a - b, and a b plus the zero of the product's sign.
SOFTWARE __m512h _mm512_add_round_ph(__m512h a, __m512h b, int mode) {
  return software_multiply_add(a, _mm512_set1_ph(1), b, mode);
}
SOFTWARE __m512h _mm512_sub_round_ph(__m512h a, __m512h b, int mode) {
  return software_multiply_add(a, _mm512_set1_ph(1), software_negated(b), mode);
}
SOFTWARE __m512h _mm512_mul_round_ph(__m512h a, __m512h b, int mode) {
  const SoftwareWords sign = ((SoftwareWords)a ^ (SoftwareWords)b) & 0x80008000u;
  return software_multiply_add(a, b, (__m512h)sign, mode);
}

template <class Operation>
inline __m512h software_of_floats(__m512h a, __m512h b, Operation operation) {
  __m512h result;
  for (int half = 0; half < 2; ++half) {
    const __m512 r = operation(_mm512_cvtph_ps(software_half<__m256i>(a, half)),
                               _mm512_cvtph_ps(software_half<__m256i>(b, half)));
    const __m256i rounded = _mm512_cvtps_ph(r, _MM_FROUND_TO_NEAREST_INT);
    std::memcpy(reinterpret_cast<char*>(&result) + 32 * half, &rounded, sizeof rounded);
  }
  return result;
}
SOFTWARE __m512h _mm512_max_ph(__m512h a, __m512h b) {
  return software_of_floats(a, b, [](__m512 x, __m512 y) { return _mm512_max_ps(x, y); });
}
SOFTWARE __m512h _mm512_min_ph(__m512h a, __m512h b) {
  return software_of_floats(a, b, [](__m512 x, __m512 y) { return _mm512_min_ps(x, y); });
}
