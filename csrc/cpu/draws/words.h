// Random words by the vector: as many 32-bit lanes as a register holds.
#pragma once

#include "cpu/lanes/vector.h"

namespace lpk {
namespace {

#if defined(__AVX512F__)
constexpr int kWordLanes = 16;
#elif defined(__AVX2__)
constexpr int kWordLanes = 8;
#else
constexpr int kWordLanes = 1;
#endif

template <int W>
struct WordVector {
  typedef uint32_t U __attribute__((vector_size(W * 4)));
};
template <>
struct WordVector<1> {
  using U = uint32_t;
};
using Words = WordVector<kWordLanes>::U;

}  // namespace

#if defined(__AVX512BW__)
// 512-bit shifts and multiplications share one port; bytes are moved on the other.
template <>
struct UpperHalf<Words> {
  LPK_HD static Words of(Words x) {
    const __m512i places = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1));
    return (Words)_mm512_shuffle_epi8((__m512i)x, places);
  }
};
#endif

namespace {

// x times a constant: the low and the high halves of the 64-bit products.
struct WideProduct {
  Words low, high;
};

LPK_HD WideProduct wide_product(Words x, uint32_t factor) {
#if defined(__AVX512F__)
  const __m512i m = _mm512_set1_epi64(factor);
  const __m512i even = _mm512_mul_epu32((__m512i)x, m);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)x, 32), m);
  return {(Words)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)),
          (Words)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd)};
#elif defined(__AVX2__)
  const __m256i m = _mm256_set1_epi64x(factor);
  const __m256i even = _mm256_mul_epu32((__m256i)x, m);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)x, 32), m);
  return {(Words)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa),
          (Words)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa)};
#else
  const uint64_t product = uint64_t{factor} * x;
  return {static_cast<uint32_t>(product), static_cast<uint32_t>(product >> 32)};
#endif
}

// Philox4x32-10 in every lane (rng.h has the scalar form): c becomes the four words.
LPK_HD void philox_lanes(Words (&c)[4], uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const WideProduct p0 = wide_product(c[0], 0xD2511F53u);
    const WideProduct p1 = wide_product(c[2], 0xCD9E8D57u);
    c[0] = p1.high ^ c[1] ^ k0;
    c[2] = p0.high ^ c[3] ^ k1;
    c[1] = p1.low;
    c[3] = p0.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

}  // namespace
}  // namespace lpk
