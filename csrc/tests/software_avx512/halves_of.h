// The common part of the vectors of 512 bits: two halves that AVX2 has instructions for, and masks
// of a bit a lane.
#pragma once

#include <cstdint>
#include <cstring>

#define SOFTWARE static inline __attribute__((always_inline))

typedef uint32_t SoftwareWords __attribute__((vector_size(64)));
typedef int32_t SoftwareInts __attribute__((vector_size(64)));
typedef uint64_t SoftwareLongs __attribute__((vector_size(64)));
typedef int64_t SoftwareLongInts __attribute__((vector_size(64)));
typedef uint32_t SoftwareHalfWords __attribute__((vector_size(32)));
typedef int32_t SoftwareHalfInts __attribute__((vector_size(32)));

template <class V>
SOFTWARE V software_load(const void* p) {
  V x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

template <class Half, class V>
SOFTWARE Half software_half(V x, int i) {
  Half h;
  std::memcpy(&h, reinterpret_cast<const char*>(&x) + 32 * i, sizeof h);
  return h;
}

template <class V, class Half>
SOFTWARE V software_whole(Half low, Half high) {
  V x;
  std::memcpy(&x, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&x) + 32, &high, sizeof high);
  return x;
}

SOFTWARE __m256 software_part(__m512 x, int i) { return software_half<__m256>(x, i); }
SOFTWARE __m256d software_part(__m512d x, int i) { return software_half<__m256d>(x, i); }
SOFTWARE __m256i software_part(__m512i x, int i) { return software_half<__m256i>(x, i); }

template <class V, class Operation>
SOFTWARE V software_by_halves(V a, V b, Operation operation) {
  return software_whole<V>(operation(software_part(a, 0), software_part(b, 0)),
                           operation(software_part(a, 1), software_part(b, 1)));
}

template <class V, class Operation>
SOFTWARE V software_by_halves(V a, V b, V c, Operation operation) {
  return software_whole<V>(
      operation(software_part(a, 0), software_part(b, 0), software_part(c, 0)),
      operation(software_part(a, 1), software_part(b, 1), software_part(c, 1)));
}

// The sign bits of the lanes, and lanes of all ones or none.
SOFTWARE __mmask16 software_mask16(SoftwareInts x) {
  return static_cast<__mmask16>(_mm256_movemask_ps(software_half<__m256>(x, 0)) |
                                _mm256_movemask_ps(software_half<__m256>(x, 1)) << 8);
}
SOFTWARE __mmask8 software_mask8(SoftwareLongInts x) {
  return static_cast<__mmask8>(_mm256_movemask_pd(software_half<__m256d>(x, 0)) |
                               _mm256_movemask_pd(software_half<__m256d>(x, 1)) << 4);
}
SOFTWARE SoftwareInts software_lanes16(__mmask16 mask) {
  const SoftwareInts bit = {1,     2,     4,     8,     0x10,   0x20,   0x40,   0x80,
                            0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x4000, 0x8000};
  return (bit & mask) != 0;
}
SOFTWARE SoftwareLongInts software_lanes8(__mmask8 mask) {
  const SoftwareLongInts bit = {1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80};
  return (bit & mask) != 0;
}
