// Tiers that are compiled on their own, each in a file of its own.
#pragma once

#include "common/accumulate.h"
#include "cpu/sums/certified/exact_sums.h"

namespace lpk {

using CertifiedTier = bool(const Tile& t, const Accumulator& acc, const OperandRange& a,
                           const OperandRange& b, const ExactSums& exact);

// In certified_double_<isa>.cpp: sums in double under a certificate; false, and nothing done, where
// there is none.
CertifiedTier run_certified_double_avx2, run_certified_double_avx512, run_certified_double_neon;

// In certified_truncated_<isa>.cpp: the same for sums in the modes other than nearest_even and
// to_odd.
CertifiedTier run_truncated_avx2, run_truncated_avx512, run_truncated_neon;

// In certified_products_<isa>.cpp: the same in float32, of products that the accumulator rounds.
CertifiedTier run_rounded_products_avx2, run_rounded_products_avx512, run_rounded_products_neon;

// The separate tiers of an instruction set.
template <class I>
struct Tiers;

template <>
struct Tiers<struct Avx2> {
  static constexpr CertifiedTier* kTruncated = run_truncated_avx2;
  static constexpr CertifiedTier* kProducts = run_rounded_products_avx2;
  static constexpr CertifiedTier* kDouble = run_certified_double_avx2;
};

template <>
struct Tiers<struct Avx512> {
  static constexpr CertifiedTier* kTruncated = run_truncated_avx512;
  static constexpr CertifiedTier* kProducts = run_rounded_products_avx512;
  static constexpr CertifiedTier* kDouble = run_certified_double_avx512;
};

template <>
struct Tiers<struct Neon> {
  static constexpr CertifiedTier* kTruncated = run_truncated_neon;
  static constexpr CertifiedTier* kProducts = run_rounded_products_neon;
  static constexpr CertifiedTier* kDouble = run_certified_double_neon;
};

// In float_avx512.cpp: sums in float32 lanes; false, and nothing done, for an accumulator without a
// rule there.
bool run_float_tile(const Tile& t, const Accumulator& acc, const OperandRange& a,
                    const OperandRange& b);
// In double_avx512.cpp: sums in double lanes, for every accumulator.
void run_exact_tile(const Tile& t, const Accumulator& acc);

}  // namespace lpk
