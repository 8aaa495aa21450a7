// The table of the kernels of one instruction set, and the short ones among them.
#include "cpu/elementwise/affine_kernel.h"
#include "cpu/elementwise/code_kernel.h"
#include "cpu/elementwise/quantize_kernel.h"
#include "cpu/lanes/transpose.h"
#include "cpu/sums/certified/operand_range.h"
#include "cpu/sums/exact/add_kernel.h"
#include "tiers.h"

namespace lpk::LPK_ISA {
namespace {

inline void measure(const float* x, int64_t count, OperandRange* range) {
  *range = merged(*range, operand_range(x, count));
}

// A call for many values: a table is searched one by one.
template <class V>
void round_block_to_table(const RoundBlock& job, const Table& table) {
  constexpr int64_t kMost = 256;
  double thresholds[kMost];
  const ElementDraws<V> draws(job);
  for (int64_t i = 0; i < job.count; i += kMost) {
    const int64_t n = std::min(kMost, job.count - i);
    for (int64_t at = 0; job.rounding == Rounding::kStochastic && at < n; at += V::kWidth)
      store(thresholds + at, draws.thresholds(job.index + i + at));
    round_to_table(table, job.rounding, job.x + i, thresholds, job.y + i, n);
  }
}

// Elementwise rounding: whole vectors, the last one through a padded copy.
template <class V>
void round_block(const RoundBlock& job) {
  using D = typename V::D;
  const Format f = number_format(job.format);
  if (f.kind == Kind::kTable) return round_block_to_table<V>(job, *f.table);
  const bool nearest = plain_nearest(f, job.rounding);
  const ElementDraws<V> draws(job);
  for (int64_t i = 0; i < job.count; i += V::kWidth) {
    const int64_t n = std::min<int64_t>(V::kWidth, job.count - i);
    const D x = load_some<V>(job.x + i, n);
    if (nearest) {
      store_some<V>(job.y + i, round_to_float_nearest_even<D>(x, f), n);
    } else {
      D threshold{};
      if (job.rounding == Rounding::kStochastic) threshold = draws.thresholds(job.index + i);
      store_some<V>(job.y + i, round_to<D>(x, f, job.rounding, threshold), n);
    }
  }
}

constexpr Kernels kernels_of(const char* name, void (*accumulate)(const Tile&)) {
  KernelFamilies families = {&kCounts,     &kBlocks,    &kHadamard, count_events,
                             update_piece, grouped_row, nullptr,    nullptr};
  if constexpr (Isa::kWords > 1) families.scaled = accumulate_scaled;
  if constexpr (Isa::kRoundsAsTold) families.scaled_bytes = accumulate_dot_products;
  return {name,
          accumulate,
          accumulate_ordered,
          add_block<DoubleVector>,
          transpose,
          copy_panels,
          measure,
          round_block<DoubleVector>,
          round_elements<WordVector>,
          encode_words<WordVector>,
          decode_words<WordVector>,
          narrow_codes<WordVector>,
          affine_span<DoubleVector>,
          widen_floats<DoubleVector>,
          narrow_floats<DoubleVector>,
          widen_range<DoubleVector>,
          families};
}

}  // namespace

const Kernels kKernels = kernels_of(Isa::kName, accumulate);
#if defined(LPK_HALF)
const Kernels kHalfKernels = kernels_of(Isa::kHalfName, accumulate_half_first);
#endif

}  // namespace lpk::LPK_ISA
