// Products of codes whose scales enter every block, in groups (docs/contract.md, "Groups with
// scales").
#pragma once

#include <cstdint>

#include "common/accumulate.h"
#include "cpu/drivers/tile.h"

namespace lpk {

// C[i] = A[i] B[i], all contiguous: a (batch, m, k), b (batch, k, n), c (batch, m, n). Scales are
// >= 0 or NaN and do not change within a group.
struct GroupedArgs {
  const float* a;
  const float* b;
  const float* a_scale;  // (batch, m, segments of a)
  const float* b_scale;  // (batch, n, segments of b)
  const float* initial;  // as c, where sums start, rounded to their format; null: +0
  float* c;
  int64_t batch, m, n, k;
  int64_t a_size, b_size;  // products of a segment; 0: all
  int64_t group;
  int64_t least;               // the least exponent that a scale counts with
  const int64_t* accumulator;  // with a block and operands, without draws
};

void matmul_grouped(const GroupedArgs& args, int threads);

constexpr int64_t segments_of(int64_t k, int64_t size) {
  return size > 0 ? (k + size - 1) / size : 1;
}

// A row of A or a panel of kPanel columns of B, as doubles: [k] and [segment], each of every lane.
// A place is the binade that a block is aligned by, 0 where there is none.
struct GroupedSide {
  const double *codes, *places;
  const double *scales, *scale_places;
};

// What a kernel knows of all rows.
struct GroupedRule {
  Accumulator acc;
  int64_t k, a_size, b_size, group;
};

}  // namespace lpk
