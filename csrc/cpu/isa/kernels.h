// The entry points of one instruction set: included by kernels_<isa>.cpp, compiled with that set's
// flags.
#pragma once

#include "cpu/elementwise/affine_kernel.h"
#include "cpu/elementwise/code_kernel.h"
#include "cpu/elementwise/quantize_kernel.h"
#include "cpu/lanes/transpose.h"
#include "cpu/sums/certified/operand_range.h"
#include "cpu/sums/exact/add_kernel.h"
#include "sets.h"

namespace lpk {
namespace {

inline void measure(const float* x, int64_t count, OperandRange* range) {
  *range = merged(*range, operand_range(x, count));
}

// A call for many values: a table is searched one by one.
template <class V>
void round_block_to_table(const RoundBlock& job, const Table& table, Rounding mode) {
  constexpr int64_t kMost = 256;
  double thresholds[kMost];
  const ElementDraws<V> draws(job);
  for (int64_t i = 0; i < job.count; i += kMost) {
    const int64_t n = std::min(kMost, job.count - i);
    for (int64_t at = 0; mode == Rounding::kStochastic && at < n; at += V::kWidth)
      store(thresholds + at, draws.thresholds(job.index + i + at));
    round_to_table(table, mode, job.x + i, thresholds, job.y + i, n);
  }
}

// Elementwise rounding: whole vectors, the last one through a padded copy.
template <class V>
void round_block(const RoundBlock& job) {
  using D = typename V::D;
  const Format f = number_format(job.format);
  const Rounding mode = static_cast<Rounding>(job.rounding);
  if (f.kind == Kind::kTable) return round_block_to_table<V>(job, *f.table, mode);
  const bool nearest = plain_nearest(f, mode);
  const ElementDraws<V> draws(job);
  for (int64_t i = 0; i < job.count; i += V::kWidth) {
    const int64_t n = std::min<int64_t>(V::kWidth, job.count - i);
    D x{};
    if (n == V::kWidth) {
      x = load<D>(job.x + i);
    } else {
      std::memcpy(&x, job.x + i, n * sizeof(double));
    }
    D y;
    if (nearest) {
      y = round_to_float_nearest_even<D>(x, f);
    } else {
      D threshold{};
      if (mode == Rounding::kStochastic) threshold = draws.thresholds(job.index + i);
      y = round_to<D>(x, f, mode, threshold);
    }
    if (n == V::kWidth) {
      store(job.y + i, y);
    } else {
      std::memcpy(job.y + i, &y, n * sizeof(double));
    }
  }
}

// The table of an instruction set with W words and V doubles in a vector.
template <class W, class V>
constexpr Kernels kernels_of(const char* isa, void (*accumulate)(const Tile&),
                             void (*accumulate_ordered)(const Tile&),
                             const KernelFamilies& families) {
  return {isa,
          accumulate,
          accumulate_ordered,
          add_block<V>,
          transpose,
          copy_panels,
          measure,
          round_block<V>,
          round_elements<W>,
          encode_words<W>,
          decode_words<W>,
          narrow_codes<W>,
          affine_span<V>,
          widen_floats<V>,
          narrow_floats<V>,
          widen_range<V>,
          families};
}

}  // namespace
}  // namespace lpk
