// Vectors of half precision with arithmetic of their own: the vocabulary of csrc/cpu/sums/half.
#pragma once

#include "cpu/drivers/tile.h"
#include "lanes.h"

#if defined(__AVX512F__)
#include "half_avx512.h"
#elif defined(LPK_NEON)
#include "half_neon.h"
#endif

namespace lpk {
namespace {

// Vectors of a column, and lane kHalves v of it.
constexpr int kHalfVectors = kHalfLanes / kHalves;

template <class Column>
LPK_HD auto* vector_of(Column* column, int v) {
  return column->lane + v * kHalves;
}

}  // namespace
}  // namespace lpk
