// One step of an emulated sum: acc <- round(acc + p), one rounding of the exact sum, whatever the
// widths of acc and p.
//
// p is a product of two float32 values, exact in double, or already rounded to the product format.
// The sum of two doubles is split into its nearest double and the error (two-sum, Knuth), and made
// odd, so that one rounding to at most 24 bits (and 24 random ones) gives the bits of the exact sum
// (Boldo and Melquiond 2008).
#pragma once

#include "rng.h"
#include "round.h"

namespace lpk {

// Every accumulator has the plain integers, and one with operands has all. Kernels are always given
// all, with zeros where there are none.
constexpr int kPlainAccumulatorInts = InAccumulator::kPlain;
constexpr int kAccumulatorInts = InAccumulator::kAll;
// The most products of an aligned block; _MAX_BLOCK of lpkernels/arithmetic/_accumulator.py.
constexpr int kMaxBlock = 256;

enum class Order : int32_t { kSequential = 0, kNative = 1, kPairwise = 2, kCompensated = 3 };
// How a block joins the running sum (cores.h); positions in ADDERS of lpkernels/arithmetic.
enum class Adder : int32_t {
  kAligned,
  kTree,
  kFloored,
  kFlooredHalves,
  kOpposed,
  kPairs,
  kPairsSwapped
};

struct Accumulator {
  Format fmt;
  Format product;
  Format outer;
  Rounding rounding;
  Rounding product_rounding;
  int32_t random_bits;
  Rng rng;
  bool has_product;
  int64_t chunk;  // 0: one sum from end to end
  Order order;
  int32_t block;            // of an aligned sum; 0: product by product
  int32_t aligned_bits;     // 0: nothing is cut
  Rounding outer_rounding;  // of the outermost sums and the bias
  // Whether blocks are aligned by their operands (orders.h), and how many of them take turns; false
  // and 1 for other accumulators.
  bool by_operands;
  int64_t interleaved;
  double left_min_normal, right_min_normal;  // of the formats of the product's factors
  double least_binade;                       // 2^least_exponent; 0: none
  Adder adder;
  double left_least, right_least;  // factors below are zeros of their sign

  // Whether blocks are added exactly, or by an adder of AMD's matrix cores.
  LPK_HD bool has_core() const {
    return adder != Adder::kAligned || (block > 0 && aligned_bits == 0);
  }
  // Blocks that take turns in a run of positions.
  LPK_HD int64_t turns() const { return adder == Adder::kPairsSwapped ? 4 : interleaved; }

  // Positions of k that become one addend: the pairs of a tree, the aligned blocks of a run.
  LPK_HD int64_t positions_together() const {
    if (order == Order::kPairwise) return 2;
    return block > 0 ? block * turns() : 1;
  }
  // Whether every product and sum must be rounded by round_to: in formats without a sign, and where
  // products have one zero and the sums have two. Other tiers let a zero have any sign; the sign
  // decides about zeros alone, and these are made +0 where sums end.
  LPK_HD bool rounds_every_step() const {
    return fmt.is_unsigned || outer.is_unsigned ||
           (has_product && (product.is_unsigned || (product.one_zero && !fmt.one_zero)));
  }
  // Whether product after product is added to one running sum.
  LPK_HD bool has_running_sum() const {
    return (order == Order::kSequential || order == Order::kNative) && block == 0;
  }
  LPK_HD bool draws() const {
    return rounding == Rounding::kStochastic || outer_rounding == Rounding::kStochastic ||
           (has_product && product_rounding == Rounding::kStochastic);
  }
};

// The integers of operands are zeros where there are none; no format has 0 bits.
LPK_HD void read_operands(const int64_t* ints, Accumulator* acc) {
  using In = InAccumulator;
  const int64_t* left = ints + In::kLeft;
  acc->by_operands = left[InFloat::kExpBits] != 0;
  acc->interleaved = acc->by_operands ? ints[In::kInterleaved] : 1;
  acc->left_min_normal = acc->by_operands ? float_format(left).min_normal : 0.0;
  acc->right_min_normal = acc->by_operands ? float_format(ints + In::kRight).min_normal : 0.0;
  const bool has_least = acc->by_operands && ints[In::kHasLeastExponent] != 0;
  acc->least_binade = has_least ? power_of_two(static_cast<int>(ints[In::kLeastExponent])) : 0.0;
  acc->adder = acc->by_operands ? static_cast<Adder>(ints[In::kAdder]) : Adder::kAligned;
  // CDNA2 flushes every subnormal operand, RDNA3 those of bf16, which has float32's exponents.
  const auto least_of = [&](double min_normal) {
    const bool flushes =
        acc->adder == Adder::kTree || (acc->adder == Adder::kOpposed && min_normal == 0x1p-126);
    return flushes ? min_normal : 0.0;
  };
  acc->left_least = least_of(acc->left_min_normal);
  acc->right_least = least_of(acc->right_min_normal);
}

// ints: Accumulator.to_ints of lpkernels/arithmetic, kAccumulatorInts of them.
LPK_HD Accumulator accumulator_from(const int64_t* ints) {
  using In = InAccumulator;
  Accumulator acc;
  acc.order = static_cast<Order>(ints[In::kOrder]);
  acc.chunk = ints[In::kChunk];
  acc.rounding = static_cast<Rounding>(ints[In::kRounding]);
  acc.product_rounding = static_cast<Rounding>(ints[In::kProductRounding]);
  acc.random_bits = static_cast<int32_t>(ints[In::kRandomBits]);
  acc.rng = static_cast<Rng>(ints[In::kRng]);
  acc.has_product = ints[In::kHasProduct] != 0;
  acc.fmt = number_format(ints + In::kFormat);
  acc.product = acc.has_product ? number_format(ints + In::kProduct) : Format{};
  acc.outer = number_format(ints + In::kOuter);
  acc.block = static_cast<int32_t>(ints[In::kBlock]);
  acc.aligned_bits = static_cast<int32_t>(ints[In::kAlignedBits]);
  acc.outer_rounding = static_cast<Rounding>(ints[In::kOuterRounding]);
  read_operands(ints, &acc);
  return acc;
}

// The odd neighbour of s + error, where s is the nearest double: s itself if exact or odd.
template <class D>
LPK_HD D made_odd(D s, D error) {
  using L = Lanes<D>;
  // Ordered comparisons: an infinite s has a NaN for error and stays as it is.
  const auto above = error > 0.0;
  const auto below = error < 0.0;
  const auto even = (L::bits(s) & 1) == 0;
  const auto outward = (above & (s > 0.0)) | (below & (s < 0.0));
  const auto bits = L::bits(s);
  const auto step = even & (above | below);
  const auto zero = bits & 0;
  return L::value(bits + (step ? (outward ? zero + 1 : zero - 1) : zero));
}

// a + b rounded to odd.
template <class D>
LPK_HD D odd_sum(D a, D b) {
  const D s = a + b;
  const D b_part = s - a;
  const D error = (a - (s - b_part)) + (b - b_part);
  return made_odd<D>(s, error);
}

// x y made odd, and x / y made odd for y > 0; no result or error is subnormal.
template <class D>
LPK_HD D product_to_odd(D x, D y) {
  const D product = x * y;
  return made_odd<D>(product, Lanes<D>::fma(x, y, -product));
}

template <class D>
LPK_HD D quotient_to_odd(D x, D y) {
  const D quotient = x / y;
  return made_odd<D>(quotient, Lanes<D>::fma(-quotient, y, x));
}

// toward_negative: an exact zero sum is -0 unless both addends are +0. In every other mode the
// nearest sum already has the right zero.
template <class D>
LPK_HD D with_zero_sign(D sum, D a, D b) {
  using L = Lanes<D>;
  return sum == 0.0 ? L::value((L::bits(a) | L::bits(b)) & kSignBit) : sum;
}

// Under wrap, a product of 2^50 quanta or more is a multiple of the quantum (it has at most 48
// bits): reduced exactly, so that making the sum odd cannot touch the bits that wrapping keeps.
template <class D>
LPK_HD D reduced_addend(D p, const Format& f) {
  const D a = magnitude<D>(p);
  const D n = p * (1.0 / f.quantum);
  return ((a >= f.quantum * 0x1p50) & (a < HUGE_VAL)) ? wrap_quanta<D>(n, f) * f.quantum : p;
}

template <class D>
LPK_HD D add_rounded(D acc, D p, const Format& f, Rounding mode, D threshold) {
  if (f.overflow == Overflow::kWrap) p = reduced_addend<D>(p, f);
  D sum = odd_sum<D>(acc, p);
  if (mode == Rounding::kTowardNegative) sum = with_zero_sign<D>(sum, acc, p);
  return round_to<D>(sum, f, mode, threshold);
}

// Sums of a format with one zero, which tiers may have left as -0.
LPK_HD void make_zeros_positive(float* sums, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] += 0.0f;
}

// The bits of the double NaN that becomes 0x7fc00000 in float32.
constexpr int64_t kCanonicalNan = 0x7ff8000000000000;

// The bits of float32's NaN. Converting a NaN would give each processor's own NaN instead.
constexpr uint32_t kCanonicalNan32 = 0x7fc00000u;
LPK_HD float canonical_nan() { return float_of_bits(kCanonicalNan32); }

// float32 result of a sum held in double; every NaN is 0x7fc00000.
LPK_HD float canonical_float(double x) { return x == x ? static_cast<float>(x) : canonical_nan(); }

}  // namespace lpk
