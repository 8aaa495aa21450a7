// The tiers of an instruction set, fastest first.
#pragma once

#include "cpu/sums/half/half_sums.h"
#include "units.h"

namespace lpk::LPK_ISA {
namespace {

//   inner[r][l] <- round(inner[r][l] + round_product(a[r][k] b[k][l]))    for k in order
//   outer[r][l] <- round_outer(outer[r][l] + inner[r][l]), inner <- +0    at the end of every chunk
//
// The tiers, fastest first; each is exact wherever it runs:
//   hardware    e5m10 by half-precision instructions                     AVX512-FP16, FEAT_FP16
//   certified   operands that prove sums in float32 or double safe       AVX-512, AVX2, NEON
//   float       nearest_even, toward_zero and stochastic, to 21 bits     AVX-512
//   double      everything

// The first certified tier that takes the tile; false if none does.
inline bool run_certified(const CertifiedJob& job) {
  if constexpr (Isa::kWords > 1) {
    return run_certified_float(job) || run_truncated(job) || run_rounded_products(job) ||
           run_certified_double(job);
  }
  return false;
}

inline void accumulate_certified(const Tile& t, const Accumulator& acc, const OperandRange& a,
                                 const OperandRange& b) {
  int64_t left = t.rows * t.lanes * t.depth;
  const auto exact = [&](const Tile& unmarked) {
    const Tile part = unmarked.marked();
    const int64_t products = part.rows * part.lanes * part.depth;
    left -= products;
    if constexpr (Isa::kRoundsAsTold) {
      if (run_float_tile(part, acc, a, b)) return count_products(Tier::kFloat, products);
    }
    run_exact_tile(part, acc);
    count_products(Tier::kDouble, products);
  };
  if (acc.rounds_every_step()) {
    run_exact_tile(t.marked(), acc);
    return count_products(Tier::kDouble, left);
  }
  if (!run_certified({t, acc, a, b, exact})) exact(t);
  count_products(Tier::kCertified, left);
}

inline void accumulate(const Tile& t) {
  const Accumulator acc = accumulator_from(t.accumulator);
  accumulate_certified(t, acc, range_of_a(t), range_of_b(t));
}

// In half precision where the processor can.
inline void accumulate_half_first(const Tile& t) {
  const Accumulator acc = accumulator_from(t.accumulator);
  const OperandRange a = range_of_a(t);
  const OperandRange& b = range_of_b(t);
  const bool other = t.spread() || acc.rounds_every_step();
  const HalfSums sums = other ? HalfSums{} : half_sums(t, acc, a, b);
  if (!sums.valid) return accumulate_certified(t, acc, a, b);
  run_half_tile(t.marked(), sums);
  count_products(Tier::kHardware, t.rows * t.lanes * t.depth);
}

}  // namespace
}  // namespace lpk::LPK_ISA
