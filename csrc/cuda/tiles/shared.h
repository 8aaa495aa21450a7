// Reads and writes of the memory that a block's threads share: 1 to 16 bytes of neighbours in one
// instruction, at addresses that are multiples of those bytes.
#pragma once

#include <cstring>

#include "common/accumulate.h"

namespace lpk::cuda {

#if !defined(__CUDA_ARCH__)
// If this is set, it is told of every access that host runs make: tests see which banks a warp
// meets.
inline void (*watch_shared)(const void* at, int bytes) = nullptr;
#endif

template <int kBytes>
struct Neighbours;
#if defined(__CUDACC__)
template <>
struct Neighbours<4> {
  using Word = uint32_t;
};
template <>
struct Neighbours<8> {
  using Word = uint2;
};
template <>
struct Neighbours<16> {
  using Word = uint4;
};
#endif

template <int kCount, class T>
LPK_HD void read_shared(const T* at, T* to) {
#if defined(__CUDA_ARCH__)
  if constexpr (kCount == 1) {
    *to = *at;
  } else {
    using Word = typename Neighbours<kCount * sizeof(T)>::Word;
    const Word word = *reinterpret_cast<const Word*>(at);
    memcpy(to, &word, sizeof word);
  }
#else
  if (watch_shared != nullptr) watch_shared(at, kCount * sizeof(T));
  std::memcpy(to, at, kCount * sizeof(T));
#endif
}

template <int kCount, class T>
LPK_HD void write_shared(T* at, const T* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (kCount == 1) {
    *at = *from;
  } else {
    using Word = typename Neighbours<kCount * sizeof(T)>::Word;
    Word word;
    memcpy(&word, from, sizeof word);
    *reinterpret_cast<Word*>(at) = word;
  }
#else
  if (watch_shared != nullptr) watch_shared(at, kCount * sizeof(T));
  std::memcpy(at, from, kCount * sizeof(T));
#endif
}

}  // namespace lpk::cuda
