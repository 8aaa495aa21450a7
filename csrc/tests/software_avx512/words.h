// Integer vectors of 512 bits.
#pragma once

#include "halves_of.h"

SOFTWARE __m512i _mm512_set1_epi32(int x) { return (__m512i)(SoftwareInts{} + x); }
SOFTWARE __m512i _mm512_set1_epi64(long long x) { return (__m512i)(SoftwareLongInts{} + x); }
SOFTWARE __m512i _mm512_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i,
                                   int j, int k, int l, int m, int n, int o, int p) {
  return (__m512i)SoftwareInts{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
}
SOFTWARE __m512i _mm512_loadu_si512(const void* p) { return software_load<__m512i>(p); }
SOFTWARE void _mm512_storeu_si512(void* p, __m512i x) { std::memcpy(p, &x, sizeof x); }
// The address must be one of whole lines, as the instruction demands.
SOFTWARE void _mm512_stream_si512(__m512i* p, __m512i x) {
  if (reinterpret_cast<uintptr_t>(p) % 64) __builtin_trap();
  *p = x;
}
SOFTWARE __m256i _mm512_castsi512_si256(__m512i x) { return software_half<__m256i>(x, 0); }
SOFTWARE __m512i _mm512_castsi256_si512(__m256i x) { return software_whole<__m512i>(x, __m256i{}); }
SOFTWARE __m256i _mm512_extracti64x4_epi64(__m512i x, int i) {
  return i ? software_half<__m256i>(x, 1) : software_half<__m256i>(x, 0);
}
SOFTWARE __m512i _mm512_inserti64x4(__m512i x, __m256i half, int i) {
  return i ? software_whole<__m512i>(software_half<__m256i>(x, 0), half)
           : software_whole<__m512i>(half, software_half<__m256i>(x, 1));
}
SOFTWARE __m512i _mm512_broadcast_i32x4(__m128i x) {
  const __m256i half = _mm256_broadcastsi128_si256(x);
  return software_whole<__m512i>(half, half);
}

SOFTWARE __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
SOFTWARE __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
SOFTWARE __m512i _mm512_andnot_si512(__m512i a, __m512i b) { return ~a & b; }
// Each bit of the result is bit 4 a + 2 b + c of the table.
SOFTWARE __m512i _mm512_ternarylogic_epi64(__m512i a, __m512i b, __m512i c, int table) {
  __m512i r = {};
  if (table & 0x01) r |= ~a & ~b & ~c;
  if (table & 0x02) r |= ~a & ~b & c;
  if (table & 0x04) r |= ~a & b & ~c;
  if (table & 0x08) r |= ~a & b & c;
  if (table & 0x10) r |= a & ~b & ~c;
  if (table & 0x20) r |= a & ~b & c;
  if (table & 0x40) r |= a & b & ~c;
  if (table & 0x80) r |= a & b & c;
  return r;
}
SOFTWARE __m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table) {
  return _mm512_ternarylogic_epi64(a, b, c, table);
}
SOFTWARE __m256i _mm256_ternarylogic_epi32(__m256i a, __m256i b, __m256i c, int table) {
  return _mm512_castsi512_si256(_mm512_ternarylogic_epi64(
      _mm512_castsi256_si512(a), _mm512_castsi256_si512(b), _mm512_castsi256_si512(c), table));
}

SOFTWARE __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  return (__m512i)((SoftwareWords)a + (SoftwareWords)b);
}
SOFTWARE __m512i _mm512_sub_epi32(__m512i a, __m512i b) {
  return (__m512i)((SoftwareWords)a - (SoftwareWords)b);
}
SOFTWARE __m512i _mm512_add_epi64(__m512i a, __m512i b) {
  return (__m512i)((SoftwareLongs)a + (SoftwareLongs)b);
}
SOFTWARE __m512i _mm512_mul_epu32(__m512i a, __m512i b) {
  return (__m512i)(((SoftwareLongs)a & 0xffffffffu) * ((SoftwareLongs)b & 0xffffffffu));
}
// Four products of an unsigned and a signed byte are added to a word.
SOFTWARE __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  SoftwareWords r = (SoftwareWords)sum;
  for (int i = 0; i < 32; i += 8) {
    const SoftwareWords byte = (SoftwareWords)a >> i & 0xff;
    const SoftwareInts factor = (SoftwareInts)((SoftwareWords)b << (24 - i)) >> 24;
    r += byte * (SoftwareWords)factor;
  }
  return (__m512i)r;
}

// Shifts by the width or more leave nothing.
SOFTWARE __m512i _mm512_srlv_epi32(__m512i a, __m512i n) {
  return software_by_halves(a, n, [](__m256i x, __m256i y) { return _mm256_srlv_epi32(x, y); });
}
SOFTWARE __m512i _mm512_i32gather_epi32(__m512i at, const void* from, int) {
  return software_by_halves(at, at, [from](__m256i i, __m256i) {
    return _mm256_i32gather_epi32(static_cast<const int*>(from), i, 4);
  });
}
SOFTWARE __m512i _mm512_sllv_epi32(__m512i a, __m512i n) {
  return software_by_halves(a, n, [](__m256i x, __m256i y) { return _mm256_sllv_epi32(x, y); });
}
SOFTWARE __m512i _mm512_srl_epi32(__m512i a, __m128i n) {
  return software_by_halves(a, a, [n](__m256i x, __m256i) { return _mm256_srl_epi32(x, n); });
}
SOFTWARE __m512i _mm512_sll_epi32(__m512i a, __m128i n) {
  return software_by_halves(a, a, [n](__m256i x, __m256i) { return _mm256_sll_epi32(x, n); });
}
SOFTWARE __m512i _mm512_srli_epi32(__m512i a, unsigned n) {
  return _mm512_srl_epi32(a, _mm_cvtsi32_si128(static_cast<int>(n)));
}
SOFTWARE __m512i _mm512_slli_epi32(__m512i a, unsigned n) {
  return _mm512_sll_epi32(a, _mm_cvtsi32_si128(static_cast<int>(n)));
}
SOFTWARE __m512i _mm512_srli_epi64(__m512i a, unsigned n) {
  return n < 64 ? (__m512i)((SoftwareLongs)a >> n) : __m512i{};
}
SOFTWARE __m512i _mm512_slli_epi64(__m512i a, unsigned n) {
  return n < 64 ? (__m512i)((SoftwareLongs)a << n) : __m512i{};
}
SOFTWARE __m512i _mm512_rorv_epi32(__m512i a, __m512i n) {
  const SoftwareWords count = (SoftwareWords)n & 31;
  return (__m512i)((SoftwareWords)a >> count | (SoftwareWords)a << (-count & 31));
}
SOFTWARE __m256i _mm256_rorv_epi32(__m256i a, __m256i n) {
  return _mm512_castsi512_si256(
      _mm512_rorv_epi32(_mm512_castsi256_si512(a), _mm512_castsi256_si512(n)));
}

SOFTWARE __mmask16 _mm512_movepi32_mask(__m512i x) { return software_mask16((SoftwareInts)x); }
SOFTWARE __mmask8 _mm512_movepi64_mask(__m512i x) { return software_mask8((SoftwareLongInts)x); }
SOFTWARE __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b) {
  return software_mask16((SoftwareInts)(a & b) != 0);
}
SOFTWARE __mmask16 _mm512_testn_epi32_mask(__m512i a, __m512i b) {
  return software_mask16((SoftwareInts)(a & b) == 0);
}
SOFTWARE __mmask16 _mm512_mask_test_epi32_mask(__mmask16 mask, __m512i a, __m512i b) {
  return mask & _mm512_test_epi32_mask(a, b);
}
SOFTWARE __mmask8 _mm512_test_epi64_mask(__m512i a, __m512i b) {
  return software_mask8((SoftwareLongInts)(a & b) != 0);
}
SOFTWARE __mmask16 _mm512_cmpgt_epi32_mask(__m512i a, __m512i b) {
  return software_mask16((SoftwareInts)a > (SoftwareInts)b);
}
SOFTWARE __mmask16 _mm512_cmpgt_epu32_mask(__m512i a, __m512i b) {
  return software_mask16((SoftwareWords)a > (SoftwareWords)b);
}

SOFTWARE __m512i _mm512_mask_mov_epi32(__m512i other, __mmask16 mask, __m512i x) {
  const __m512i chosen = (__m512i)software_lanes16(mask);
  return (x & chosen) | (other & ~chosen);
}
SOFTWARE __m512i _mm512_mask_blend_epi32(__mmask16 mask, __m512i other, __m512i x) {
  return _mm512_mask_mov_epi32(other, mask, x);
}
SOFTWARE __m512i _mm512_mask_add_epi32(__m512i other, __mmask16 mask, __m512i a, __m512i b) {
  return _mm512_mask_mov_epi32(other, mask, _mm512_add_epi32(a, b));
}
SOFTWARE __m512i _mm512_mask_sub_epi32(__m512i other, __mmask16 mask, __m512i a, __m512i b) {
  return _mm512_mask_mov_epi32(other, mask, _mm512_sub_epi32(a, b));
}
SOFTWARE __m512i _mm512_mask_or_epi32(__m512i other, __mmask16 mask, __m512i a, __m512i b) {
  return _mm512_mask_mov_epi32(other, mask, a | b);
}

SOFTWARE __m512i _mm512_shuffle_epi8(__m512i a, __m512i places) {
  return software_by_halves(a, places,
                            [](__m256i x, __m256i y) { return _mm256_shuffle_epi8(x, y); });
}
// Places 0 to 15 are lanes of a, and places 16 to 31 are lanes of b.
SOFTWARE __m512i _mm512_permutex2var_epi32(__m512i a, __m512i places, __m512i b) {
  const SoftwareInts x = (SoftwareInts)a, y = (SoftwareInts)b, n = (SoftwareInts)places;
  SoftwareInts r;
  for (int i = 0; i < 16; ++i) r[i] = n[i] & 16 ? y[n[i] & 15] : x[n[i] & 15];
  return (__m512i)r;
}
SOFTWARE __m512i _mm512_permutexvar_epi32(__m512i places, __m512i x) {
  return _mm512_permutex2var_epi32(x, _mm512_and_si512(places, _mm512_set1_epi32(15)), x);
}
SOFTWARE __m512i _mm512_cvtepu16_epi32(__m256i x) {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  return (__m512i) __builtin_convertvector((Halves)x, SoftwareWords);
}
SOFTWARE __m512i _mm512_cvtepi8_epi32(__m128i x) {
  const __m128i high = _mm_srli_si128(x, 8);
  return software_whole<__m512i>(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(high));
}
SOFTWARE __m512i _mm512_cvtepi8_epi64(__m128i x) {
  const __m128i high = _mm_srli_si128(x, 4);
  return software_whole<__m512i>(_mm256_cvtepi8_epi64(x), _mm256_cvtepi8_epi64(high));
}
SOFTWARE __m512i _mm512_cvtepu8_epi32(__m128i x) {
  typedef uint8_t Sixteen __attribute__((vector_size(16)));
  return (__m512i) __builtin_convertvector((Sixteen)x, SoftwareWords);
}
SOFTWARE __m128i _mm512_cvtepi32_epi8(__m512i x) {
  typedef uint8_t Sixteen __attribute__((vector_size(16)));
  return (__m128i) __builtin_convertvector((SoftwareWords)x, Sixteen);
}
SOFTWARE __m256i _mm512_cvtepi32_epi16(__m512i x) {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  return (__m256i) __builtin_convertvector((SoftwareWords)x, Halves);
}
SOFTWARE __m128i _mm256_cvtepi16_epi8(__m256i x) {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  typedef uint8_t Sixteen __attribute__((vector_size(16)));
  return (__m128i) __builtin_convertvector((Halves)x, Sixteen);
}
