// The entry points of one instruction set: included by kernels_<isa>.cpp, compiled with that set's
// flags.
#pragma once

#include "cpu/elementwise/affine_kernel.h"
#include "cpu/elementwise/code_kernel.h"
#include "cpu/elementwise/quantize_kernel.h"
#include "cpu/lanes/transpose.h"
#include "cpu/sums/certified/operand_range.h"
#include "cpu/sums/exact/add_kernel.h"
#include "cpu/sums/exact/double_kernel.h"
#if defined(__AVX2__)
#include "cpu/sums/certified/certified_kernel.h"
#include "separate_tiers.h"
#endif

namespace lpk {
namespace {

//   inner[r][l] <- round(inner[r][l] + round_product(a[r][k] b[k][l]))    for k in order
//   outer[r][l] <- round_outer(outer[r][l] + inner[r][l]), inner <- +0    at the end of every chunk
//
// The tiers, fastest first; each is exact wherever it runs:
//   hardware    e5m10 by half-precision instructions                     AVX512-FP16
//   certified   operands that prove sums in float32 or double safe       AVX-512, AVX2
//   float       every mode up to 21 mantissa bits                        AVX-512
//   double      everything
#if defined(__AVX2__)
#if defined(__AVX512F__)
constexpr CertifiedTier* kTruncated = run_truncated_avx512;
#else
constexpr CertifiedTier* kTruncated = run_truncated_avx2;
#endif

// truncated: that tier for the processor.
template <class V>
void accumulate_certified(const Tile& t, const Accumulator& acc, const OperandRange& a,
                          const OperandRange& b, CertifiedTier* truncated = kTruncated) {
  int64_t left = t.rows * t.lanes * t.depth;
  const auto exact = [&](const Tile& unmarked) {
    const Tile part = unmarked.marked();
    const int64_t products = part.rows * part.lanes * part.depth;
    left -= products;
#if defined(__AVX512F__)
    if (run_float_tile(part, acc, a, b)) return count_products(Tier::kFloat, products);
    run_exact_tile(part, acc);
#else
    run_double_tile<V>(part, acc);
#endif
    count_products(Tier::kDouble, products);
  };
#if defined(__AVX512F__)
  const bool held = run_certified_tile<Floats<16>>(t, acc, a, b, exact) ||
                    truncated(t, acc, a, b, exact) ||
                    run_rounded_products_avx512(t, acc, a, b, exact) ||
                    run_certified_double_avx512(t, acc, a, b, exact);
#else
  const bool held = run_certified_tile<Floats<8>>(t, acc, a, b, exact) ||
                    truncated(t, acc, a, b, exact) ||
                    run_rounded_products_avx2(t, acc, a, b, exact) ||
                    run_certified_double_avx2(t, acc, a, b, exact);
#endif
  if (!held) exact(t);
  count_products(Tier::kCertified, left);
}
#endif

template <class V>
void accumulate_tile(const Tile& t) {
  const Accumulator acc = accumulator_from(t.accumulator);
#if defined(__AVX2__)
  const OperandRange a = range_of_a(t);
  const OperandRange& b = range_of_b(t);
  accumulate_certified<V>(t, acc, a, b);
#else
  run_double_tile<V>(t.marked(), acc);
  count_products(Tier::kDouble, t.rows * t.lanes * t.depth);
#endif
}

inline void measure(const float* x, int64_t count, OperandRange* range) {
  *range = merged(*range, operand_range(x, count));
}

// Elementwise rounding: whole vectors, the last one through a padded copy.
template <class V>
void round_block(const RoundBlock& job) {
  using D = typename V::D;
  const Format f = number_format(job.format);
  const Rounding mode = static_cast<Rounding>(job.rounding);
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

}  // namespace
}  // namespace lpk
