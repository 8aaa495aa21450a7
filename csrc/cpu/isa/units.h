// The units of an instruction set: the sources of this folder, each compiled once for every set, in
// whose namespace it is (LPK_ISA, such as avx2). CMakeLists.txt says which set has which units.
#pragma once

#include "common/accumulate.h"
#include "cpu/lanes/lanes.h"
#include "cpu/sums/certified/exact_sums.h"
#include "sets.h"

namespace lpk {

// AVX-512 alone has these. In float.cpp: sums in float32 lanes; false, and nothing done, for an
// accumulator without a rule there.
bool run_float_tile(const Tile& t, const Accumulator& acc, const OperandRange& a,
                    const OperandRange& b);
// In dot_products.cpp: products by scale as dot products of bytes; false, and nothing done, where
// codes are no integers of eight bits.
bool accumulate_dot_products(const ScaledTile& t);

namespace LPK_ISA {

// Vectors of doubles and of words.
using DoubleVector = Vec<Isa::kDoubles>;
using WordVector = Bits32<Isa::kWords>;

extern const BlockKernels kBlocks;
extern const CountKernels kCounts;
extern const HadamardKernels kHadamard;
EventKernel count_events;
GroupedKernel grouped_row;
UpdateKernel update_piece;
void accumulate_scaled(const ScaledTile& t);
void accumulate_ordered(const Tile& t);
// Blocks aligned by their operands.
void accumulate_operands(const Tile& t);
// Sums in double lanes, for every accumulator.
void run_exact_tile(const Tile& t, const Accumulator& acc);

// Sums under a certificate; false, and nothing done, where there is none.
using CertifiedTier = bool(const CertifiedJob& job);
CertifiedTier run_certified_float, run_certified_double;
// The same in the modes other than nearest_even and to_odd.
CertifiedTier run_truncated;
// The same in float32, of products that the accumulator rounds.
CertifiedTier run_rounded_products;

}  // namespace LPK_ISA
}  // namespace lpk
