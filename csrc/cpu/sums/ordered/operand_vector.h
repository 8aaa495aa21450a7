// The vectors of blocks aligned by their operands: lanes in float32 or double, and bytes.
#pragma once

#include "cpu/lanes/lanes.h"
#include "cpu/sums/certified/operand_range.h"

namespace lpk {
namespace {

// Vectors of the processor: kVectorBytes / sizeof(T) lanes.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#else
constexpr int kVectorBytes = 32;
#endif
// The most vectors of lanes taken at once: as many pairs of sums hide the latency of one.
constexpr int kMostVectors = 4;
// From one half of B's lanes to the other, in bytes.
constexpr int kHalfBytes = kMostVectors * kVectorBytes;

template <class T>
struct OperandVector;
template <>
struct OperandVector<float> {
  typedef float F __attribute__((vector_size(kVectorBytes)));
  typedef int32_t I __attribute__((vector_size(kVectorBytes)));
  using Word = int32_t;
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr Precision kPrecision = single_precision();
  LPK_HD static F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
  }
  LPK_HD static F all(float x) {
#if defined(__AVX512F__)
    return (F)_mm512_set1_ps(x);
#else
    return (F)_mm256_set1_ps(x);
#endif
  }
  LPK_HD static F max(F a, F b) {
#if defined(__AVX512F__)
    return (F)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return (F)_mm256_max_ps((__m256)a, (__m256)b);
#endif
  }
  // One byte for each word of a vector, widened to it.
  LPK_HD static I bytes(const int8_t* p) {
#if defined(__AVX512F__)
    return (I)_mm512_cvtepi8_epi32(load<__m128i>(p));
#else
    return (I)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#endif
  }
  LPK_HD static F load_sums(const float* p) { return load<F>(p); }
  LPK_HD static void store_sums(float* p, F x) { store(p, x); }
};
template <>
struct OperandVector<double> {
  typedef double F __attribute__((vector_size(kVectorBytes)));
  typedef int64_t I __attribute__((vector_size(kVectorBytes)));
  using Word = int64_t;
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr Precision kPrecision = double_precision();
  LPK_HD static F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    return (F)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#else
    return (F)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#endif
  }
  LPK_HD static F all(double x) {
#if defined(__AVX512F__)
    return (F)_mm512_set1_pd(x);
#else
    return (F)_mm256_set1_pd(x);
#endif
  }
  LPK_HD static F max(F a, F b) {
#if defined(__AVX512F__)
    return (F)_mm512_max_pd((__m512d)a, (__m512d)b);
#else
    return (F)_mm256_max_pd((__m256d)a, (__m256d)b);
#endif
  }
  LPK_HD static I bytes(const int8_t* p) {
#if defined(__AVX512F__)
    return (I)_mm512_cvtepi8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
    return (I)_mm256_cvtepi8_epi64(_mm_cvtsi32_si128(load<int32_t>(p)));
#endif
  }
  LPK_HD static F load_sums(const float* p) {
#if defined(__AVX512F__)
    return (F)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#else
    return (F)_mm256_cvtps_pd(_mm_loadu_ps(p));
#endif
  }
  LPK_HD static void store_sums(float* p, F x) {
#if defined(__AVX512F__)
    _mm256_storeu_ps(p, _mm512_cvtpd_ps((__m512d)x));
#else
    _mm_storeu_ps(p, _mm256_cvtpd_ps((__m256d)x));
#endif
  }
};

// Bytes of `kCount` lanes.
template <int kCount>
struct ByteVector {
  typedef int8_t B __attribute__((vector_size(kCount)));
  typedef int32_t Words __attribute__((vector_size(kCount)));
  LPK_HD static B max(B a, B b) { return a > b ? a : b; }
  // Four copies of a byte.
  LPK_HD static B all(int32_t copies) { return (B)(Words{} + copies); }
};

}  // namespace
}  // namespace lpk
