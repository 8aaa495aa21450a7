// The tiers of an instruction set with vectors, fastest first.
#pragma once

#include "cpu/sums/certified/certified_kernel.h"
#include "cpu/sums/exact/double_kernel.h"
#include "cpu/sums/half/half_sums.h"
#include "separate_tiers.h"

namespace lpk {
namespace {

//   inner[r][l] <- round(inner[r][l] + round_product(a[r][k] b[k][l]))    for k in order
//   outer[r][l] <- round_outer(outer[r][l] + inner[r][l]), inner <- +0    at the end of every chunk
//
// The tiers, fastest first; each is exact wherever it runs:
//   hardware    e5m10 by half-precision instructions                     AVX512-FP16, FEAT_FP16
//   certified   operands that prove sums in float32 or double safe       AVX-512, AVX2, NEON
//   float       nearest_even, toward_zero and stochastic, to 21 bits     AVX-512
//   double      everything
//
// The double tier.
template <class V>
void run_any_tile(const Tile& t, const Accumulator& acc) {
  if constexpr (Isa::kRoundsAsTold) {
    run_exact_tile(t, acc);
  } else {
    run_double_tile<V>(t, acc);
  }
}

template <class V>
void accumulate_certified(const Tile& t, const Accumulator& acc, const OperandRange& a,
                          const OperandRange& b) {
  int64_t left = t.rows * t.lanes * t.depth;
  const auto exact = [&](const Tile& unmarked) {
    const Tile part = unmarked.marked();
    const int64_t products = part.rows * part.lanes * part.depth;
    left -= products;
    if constexpr (Isa::kRoundsAsTold) {
      if (run_float_tile(part, acc, a, b)) return count_products(Tier::kFloat, products);
    }
    run_any_tile<V>(part, acc);
    count_products(Tier::kDouble, products);
  };
  if (acc.rounds_every_step()) {
    run_any_tile<V>(t.marked(), acc);
    return count_products(Tier::kDouble, left);
  }
  const bool held = run_certified_tile<Floats<Isa::kWords>>(t, acc, a, b, exact) ||
                    Tiers<Isa>::kTruncated(t, acc, a, b, exact) ||
                    Tiers<Isa>::kProducts(t, acc, a, b, exact) ||
                    Tiers<Isa>::kDouble(t, acc, a, b, exact);
  if (!held) exact(t);
  count_products(Tier::kCertified, left);
}

template <class V>
void accumulate_tile(const Tile& t) {
  const Accumulator acc = accumulator_from(t.accumulator);
  accumulate_certified<V>(t, acc, range_of_a(t), range_of_b(t));
}

// In half precision where the processor can.
template <class V>
void accumulate_half_first(const Tile& t) {
  const Accumulator acc = accumulator_from(t.accumulator);
  const OperandRange a = range_of_a(t);
  const OperandRange& b = range_of_b(t);
  const bool other = t.spread() || acc.rounds_every_step();
  const HalfSums sums = other ? HalfSums{} : half_sums(t, acc, a, b);
  if (!sums.valid) return accumulate_certified<V>(t, acc, a, b);
  const bool outer_is_half = half_precision(acc.outer) && acc.outer_rounding == acc.rounding;
  run_half_tile(t.marked(), sums, outer_is_half);
  count_products(Tier::kHardware, t.rows * t.lanes * t.depth);
}

}  // namespace
}  // namespace lpk
