// parallel_for: independent pieces of work over threads, each in the kernels' own floating-point
// environment.
//
// Work is split over outputs only, so the number of threads never shows in a result.
#pragma once

#include <cstdint>
#include <exception>

#include "cpu/lanes/control_word.h"

namespace lpk {

template <class Body>
void parallel_for(int64_t count, int threads, const Body& body) {
  std::exception_ptr failure;
  if (count <= 0) return;
  if (threads > count) threads = static_cast<int>(count);
  if (threads < 1) threads = 1;
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads) if (threads > 1)
#endif
  {
    const FloatEnvironment environment;
#if defined(_OPENMP)
#pragma omp for schedule(dynamic)
#endif
    for (int64_t i = 0; i < count; ++i) {
      // An exception must not leave an OpenMP region: the last one is kept and thrown outside.
      try {
        body(i);
      } catch (...) {
#if defined(_OPENMP)
#pragma omp critical
#endif
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

// Elements in pieces of `grain`, a multiple of which starts each piece.
template <class Body>
void parallel_ranges(int64_t count, int64_t grain, int threads, const Body& body) {
  const int64_t pieces = (count + grain - 1) / grain;
  parallel_for(pieces, threads, [&](int64_t piece) {
    const int64_t begin = piece * grain;
    body(begin, begin + grain < count ? begin + grain : count);
  });
}

}  // namespace lpk
