// Formats and accumulators of the tests, as the integers that cross into the kernels.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "common/accumulate.h"

namespace lpk_fuzz {

using FormatInts = std::array<int64_t, lpk::kFormatInts>;
using lpk::Overflow;
using lpk::Rounding;
using lpk::Specials;

struct FloatOptions {
  Specials specials = Specials::kIeee;
  Overflow overflow = Overflow::kInfinity;
  bool subnormals = true;
  int bias = -1000;  // 2^(exp_bits - 1) - 1, for fnuz and P3109 one more
  bool is_unsigned = false;
};

inline FormatInts float_ints(int exp_bits, int man_bits, FloatOptions options = {}) {
  const int below = options.specials >= Specials::kFnuz ? 0 : 1;
  const int bias = options.bias == -1000 ? (1 << (exp_bits - 1)) - below : options.bias;
  const auto specials = static_cast<int64_t>(options.specials);
  const auto overflow = static_cast<int64_t>(options.overflow);
  return {0, exp_bits, man_bits, bias, specials, options.subnormals, overflow, options.is_unsigned};
}

inline FormatInts fixed_ints(int word_bits, int frac_bits, bool wrap = false,
                             bool is_signed = true) {
  return {1, word_bits, frac_bits, is_signed, wrap, 0, 0, 0};
}

struct NamedFormat {
  const char* name;
  FormatInts ints;
};

constexpr Rounding kRoundings[] = {
    Rounding::kNearestEven,    Rounding::kNearestAway,    Rounding::kTowardZero,
    Rounding::kTowardPositive, Rounding::kTowardNegative, Rounding::kToOdd,
    Rounding::kStochastic,
};
constexpr const char* kRoundingNames[] = {
    "nearest_even",    "nearest_away", "toward_zero", "toward_positive",
    "toward_negative", "to_odd",       "stochastic",
};

inline const char* name_of(Rounding rounding) { return kRoundingNames[static_cast<int>(rounding)]; }

// Float formats of at most 16 bits, every corner among them.
inline std::vector<NamedFormat> narrow_float_formats() {
  const Specials fn = Specials::kFn;
  const Specials none = Specials::kNone;
  const Overflow saturate = Overflow::kSaturate;
  const Overflow nan = Overflow::kNan;
  return {
      {"e5m2", float_ints(5, 2)},
      {"e4m3fn", float_ints(4, 3, {fn, nan})},
      {"e4m3fn_sat", float_ints(4, 3, {fn, saturate})},
      {"e2m1none_sat", float_ints(2, 1, {none, saturate})},
      {"e3m2none_sat", float_ints(3, 2, {none, saturate})},
      {"e4m3none_b11_sat", float_ints(4, 3, {none, saturate, true, 11})},
      {"e4m3_nosub", float_ints(4, 3, {Specials::kIeee, Overflow::kInfinity, false})},
      {"e5m2_nosub_sat", float_ints(5, 2, {Specials::kIeee, saturate, false})},
      {"e5m2_nan", float_ints(5, 2, {Specials::kIeee, nan})},
      {"e4m0", float_ints(4, 0)},
      {"e8m0_sat", float_ints(8, 0, {Specials::kIeee, saturate})},
      {"e3m0fn_nan", float_ints(3, 0, {fn, nan})},
      {"e2m0none_nan_nosub", float_ints(2, 0, {none, nan, false})},
      {"e1m2none", float_ints(1, 2, {none, Overflow::kInfinity, true, 0})},
      {"e1m1fn_sat", float_ints(1, 1, {fn, saturate, true, 0})},
      {"e3m4_bneg60", float_ints(3, 4, {Specials::kIeee, Overflow::kInfinity, true, -60})},
      {"e5m4_b120", float_ints(5, 4, {Specials::kIeee, Overflow::kInfinity, true, 120})},
      {"e5m10", float_ints(5, 10)},
      {"e6m9", float_ints(6, 9)},
      {"e8m7", float_ints(8, 7)},
      {"e6m9_nosub", float_ints(6, 9, {Specials::kIeee, Overflow::kInfinity, false})},
      {"e4m3fnuz", float_ints(4, 3, {Specials::kFnuz, nan})},
      {"e5m2fnuz_nosub_sat", float_ints(5, 2, {Specials::kFnuz, saturate, false})},
      {"p3109_k8p3se", float_ints(5, 2, {Specials::kP3109})},
      {"p3109_k16p8se_nan", float_ints(8, 7, {Specials::kP3109, nan})},
      {"p3109_k8p3ue_nan", float_ints(6, 2, {Specials::kP3109, nan, true, -1000, true})},
      {"p3109_k8p1uf_sat", float_ints(8, 0, {Specials::kFnuz, saturate, true, -1000, true})},
      {"e8m7none_sat_b128", float_ints(8, 7, {none, saturate, true, 128})},
  };
}

inline std::vector<NamedFormat> wide_float_formats() {
  const Overflow saturate = Overflow::kSaturate;
  return {
      {"e8m23", float_ints(8, 23)},
      {"e8m22_sat", float_ints(8, 22, {Specials::kIeee, saturate})},
      {"e5m23", float_ints(5, 23)},
      {"e8m10_nosub", float_ints(8, 10, {Specials::kIeee, Overflow::kInfinity, false})},
      {"e7m20none", float_ints(7, 20, {Specials::kNone, Overflow::kInfinity})},
      {"e6m13fn", float_ints(6, 13, {Specials::kFn, Overflow::kNan})},
  };
}

inline std::vector<NamedFormat> fixed_formats() {
  return {
      {"fixed8_f4", fixed_ints(8, 4)},
      {"fixed8_f4_wrap", fixed_ints(8, 4, true)},
      {"fixed8_f12", fixed_ints(8, 12)},
      {"fixed16_f8", fixed_ints(16, 8)},
      {"fixed16_f8_wrap", fixed_ints(16, 8, true)},
      {"ufixed5_fneg3", fixed_ints(5, -3, false, false)},
      {"ufixed5_fneg3_wrap", fixed_ints(5, -3, true, false)},
      {"fixed1_f0", fixed_ints(1, 0)},
      {"ufixed1_f0_wrap", fixed_ints(1, 0, true, false)},
      {"fixed16_f149", fixed_ints(16, 149)},
      {"fixed2_fneg126", fixed_ints(2, -126)},
      {"fixed14_f140_wrap", fixed_ints(14, 140, true)},
  };
}

struct AccumulatorSpec {
  std::string name;
  FormatInts fmt;
  Rounding rounding = Rounding::kNearestEven;
  int64_t chunk = 0;
  bool has_product = false;
  FormatInts product{};
  Rounding product_rounding = Rounding::kNearestEven;
  bool has_outer = false;
  FormatInts outer{};
  int random_bits = 8;
  lpk::Rng rng = lpk::Rng::kFast;
  lpk::Order order = lpk::Order::kSequential;
  int64_t block = 0;
  int64_t aligned_bits = 0;
  bool has_outer_rounding = false;
  Rounding outer_rounding = Rounding::kNearestEven;
  // For blocks that are aligned by their operands: the formats of the operands, and the rest.
  bool has_operands = false;
  FormatInts left{};
  FormatInts right{};
  bool has_least = false;
  int64_t least_exponent = 0;
  int64_t interleaved = 1;

  std::array<int64_t, lpk::kAccumulatorInts> ints() const {
    std::array<int64_t, lpk::kAccumulatorInts> all = {static_cast<int64_t>(order),
                                                      chunk,
                                                      static_cast<int64_t>(rounding),
                                                      static_cast<int64_t>(product_rounding),
                                                      random_bits,
                                                      static_cast<int64_t>(rng),
                                                      has_product,
                                                      has_outer};
    for (int i = 0; i < lpk::kFormatInts; ++i) {
      all[8 + i] = fmt[i];
      all[16 + i] = has_product ? product[i] : 0;
      all[24 + i] = has_outer ? outer[i] : fmt[i];
    }
    all[32] = block;
    all[33] = aligned_bits;
    all[34] = static_cast<int64_t>(has_outer_rounding ? outer_rounding : rounding);
    if (!has_operands) return all;
    using In = lpk::InAccumulator;
    for (int i = 0; i < lpk::kFormatInts; ++i) {
      all[In::kLeft + i] = left[i];
      all[In::kRight + i] = right[i];
    }
    all[In::kHasLeastExponent] = has_least;
    all[In::kLeastExponent] = least_exponent;
    all[In::kInterleaved] = interleaved;
    return all;
  }

  AccumulatorSpec with_product(FormatInts format, Rounding mode = Rounding::kNearestEven) const {
    AccumulatorSpec spec = *this;
    spec.has_product = true;
    spec.product = format;
    spec.product_rounding = mode;
    return spec;
  }
  AccumulatorSpec chunked(int64_t length) const {
    AccumulatorSpec spec = *this;
    spec.chunk = length;
    return spec;
  }
  AccumulatorSpec chunked(int64_t length, FormatInts format) const {
    AccumulatorSpec spec = chunked(length);
    spec.has_outer = true;
    spec.outer = format;
    return spec;
  }
  AccumulatorSpec outer_rounded(Rounding mode) const {
    AccumulatorSpec spec = *this;
    spec.has_outer_rounding = true;
    spec.outer_rounding = mode;
    return spec;
  }
  AccumulatorSpec ordered(lpk::Order by) const {
    AccumulatorSpec spec = *this;
    spec.order = by;
    return spec;
  }
  AccumulatorSpec aligned(int64_t products, int64_t bits) const {
    AccumulatorSpec spec = *this;
    spec.block = products;
    spec.aligned_bits = bits;
    return spec;
  }
  AccumulatorSpec of_operands(FormatInts a, FormatInts b, int64_t taking_turns = 1) const {
    AccumulatorSpec spec = *this;
    spec.has_operands = true;
    spec.left = a;
    spec.right = b;
    spec.interleaved = taking_turns;
    return spec;
  }
  AccumulatorSpec least(int64_t exponent) const {
    AccumulatorSpec spec = *this;
    spec.has_least = true;
    spec.least_exponent = exponent;
    return spec;
  }
  AccumulatorSpec drawing(int bits, lpk::Rng generator = lpk::Rng::kFast) const {
    AccumulatorSpec spec = *this;
    spec.random_bits = bits;
    spec.rng = generator;
    return spec;
  }
};

inline std::vector<AccumulatorSpec> accumulators() {
  const FormatInts e4m3 = float_ints(4, 3);
  const FormatInts e5m2 = float_ints(5, 2);
  const FormatInts e5m10 = float_ints(5, 10);
  const FormatInts e6m9 = float_ints(6, 9);
  const FormatInts bf16 = float_ints(8, 7);
  const FormatInts fp32 = float_ints(8, 23);
  const FormatInts e4m3fn = float_ints(4, 3, {Specials::kFn, Overflow::kNan});
  const FormatInts e4m3fn_sat = float_ints(4, 3, {Specials::kFn, Overflow::kSaturate});
  const FormatInts e3m2sat = float_ints(3, 2, {Specials::kNone, Overflow::kSaturate});
  const FormatInts e4m3fnuz = float_ints(4, 3, {Specials::kFnuz, Overflow::kNan});
  const FormatInts k8p3 = float_ints(5, 2, {Specials::kP3109});
  const FormatInts k9p5_unsigned =
      float_ints(5, 4, {Specials::kP3109, Overflow::kInfinity, true, -1000, true});
  const FormatInts e5m3nosub = float_ints(5, 3, {Specials::kIeee, Overflow::kInfinity, false});
  const FormatInts lba_sum = float_ints(4, 7, {Specials::kNone, Overflow::kSaturate, false, 10});
  const FormatInts lba_product =
      float_ints(4, 7, {Specials::kNone, Overflow::kSaturate, false, 12});
  const Rounding away = Rounding::kNearestAway;
  const Rounding zero = Rounding::kTowardZero;
  const Rounding up = Rounding::kTowardPositive;
  const Rounding down = Rounding::kTowardNegative;
  const Rounding odd = Rounding::kToOdd;
  const Rounding stochastic = Rounding::kStochastic;
  const lpk::Rng philox = lpk::Rng::kPhilox;
  const lpk::Order tree = lpk::Order::kPairwise;
  const lpk::Order kahan = lpk::Order::kCompensated;
  using A = AccumulatorSpec;
  return {
      // One sum of exact products: widths, modes, corners of the format.
      A{"fp32", fp32},
      A{"e5m10", e5m10},
      A{"bf16", bf16},
      A{"e6m9", e6m9},
      A{"e8m21", float_ints(8, 21)},
      A{"e8m22", float_ints(8, 22)},
      A{"e7m15", float_ints(7, 15)},
      A{"e5m10 saturate", float_ints(5, 10, {Specials::kIeee, Overflow::kSaturate})},
      A{"e5m2 nan", float_ints(5, 2, {Specials::kIeee, Overflow::kNan})},
      A{"e4m9 saturate, chunk 16", float_ints(4, 9, {Specials::kIeee, Overflow::kSaturate})}
          .chunked(16),
      A{"e5m11", float_ints(5, 11)},
      A{"e4m3fn", e4m3fn},
      A{"e4m3fn_sat nearest_away", e4m3fn_sat, away},
      A{"e3m2none_sat", e3m2sat},
      A{"e6m0", float_ints(6, 0)},
      A{"e8m0 to_odd", float_ints(8, 0), odd},
      A{"e4m3 nearest_away", e4m3, away},
      A{"e5m10 toward_zero", e5m10, zero},
      A{"e6m9 toward_positive", e6m9, up},
      A{"e6m9 toward_negative", e6m9, down},
      A{"e5m7 to_odd", float_ints(5, 7), odd},
      A{"fp32 toward_negative", fp32, down},
      A{"e5m3_nosub", e5m3nosub},
      A{"e5m3_nosub toward_positive", e5m3nosub, up},
      // One zero, and no sign.
      A{"e4m3fnuz", e4m3fnuz},
      A{"p3109_k8p3se toward_negative, chunk 5, outer fp32", k8p3, down}.chunked(5, fp32),
      A{"e4m3fnuz stochastic, product p3109_k8p3se", e4m3fnuz, stochastic}.with_product(k8p3),
      A{"e5m4, product e4m3fnuz toward_negative, chunk 3, outer p3109_k8p3se", float_ints(5, 4)}
          .with_product(e4m3fnuz, down)
          .chunked(3, k8p3),
      A{"e4m3fnuz pairwise, chunk 11, outer e5m10", e4m3fnuz}.ordered(tree).chunked(11, e5m10),
      A{"p3109_k9p5ue, product p3109_k9p5ue", k9p5_unsigned}.with_product(k9p5_unsigned),
      A{"e5m4, chunk 4, outer p3109_k9p5ue", float_ints(5, 4)}.chunked(4, k9p5_unsigned),
      // Rounded products.
      A{"e5m10, product e4m3", e5m10}.with_product(e4m3),
      A{"e6m9, product e4m3", e6m9}.with_product(e4m3),
      A{"e6m9, product e5m10", e6m9}.with_product(e5m10),
      A{"e8m10, product bf16 toward_zero", float_ints(8, 10)}.with_product(bf16, zero),
      A{"e5m6 to_odd, product e4m3fn_sat", float_ints(5, 6), odd}.with_product(e4m3fn_sat, away),
      A{"lba, chunk 5", lba_sum, zero}.with_product(lba_product, zero).chunked(5),
      // Chunks, also with another outer format.
      A{"e6m9, chunk 64", e6m9}.chunked(64),
      A{"e5m4, chunk 3", float_ints(5, 4)}.chunked(3),
      A{"e8m13 toward_zero, chunk 4, outer fp32", float_ints(8, 13), zero}.chunked(4, fp32),
      A{"fp32, chunk 1, outer e5m5", fp32}.chunked(1, float_ints(5, 5)),
      // Stochastic: few and many bits, both generators, products and chunks too.
      A{"e5m10 stochastic", e5m10, stochastic},
      A{"e6m9 stochastic 1", e6m9, stochastic}.drawing(1),
      A{"e5m6 stochastic 13, chunk 7", float_ints(5, 6), stochastic}.chunked(7).drawing(13),
      A{"e5m4 stochastic 24 philox", float_ints(5, 4), stochastic}.drawing(24, philox),
      A{"e5m3_nosub stochastic 5", e5m3nosub, stochastic}.drawing(5),
      A{"e5m5, product e4m3fn_sat stochastic 4, chunk 6, outer bf16", float_ints(5, 5)}
          .with_product(e4m3fn_sat, stochastic)
          .chunked(6, bf16)
          .drawing(4),
      A{"e5m3 stochastic, product e5m2 stochastic philox", float_ints(5, 3), stochastic}
          .with_product(e5m2, stochastic)
          .drawing(8, philox),
      // Fixed point.
      A{"fixed16_f8", fixed_ints(16, 8)},
      A{"fixed8_f3_wrap toward_zero", fixed_ints(8, 3, true), zero},
      A{"fixed24_f140_wrap toward_negative", fixed_ints(24, 140, true), down},
      A{"fixed12_f6 stochastic, product fixed10_f5", fixed_ints(12, 6), stochastic}.with_product(
          fixed_ints(10, 5), away),
      A{"fixed9_f4_wrap, chunk 4, outer e5m6", fixed_ints(9, 4, true)}.chunked(4, float_ints(5, 6)),
      A{"ufixed8_f2", fixed_ints(8, 2, false, false), away},
      // Trees.
      A{"e5m10 pairwise", e5m10}.ordered(tree),
      A{"fp32 toward_negative pairwise, chunk 13", fp32, down}.ordered(tree).chunked(13),
      A{"e5m6 stochastic pairwise, product e4m3", float_ints(5, 6), stochastic}
          .ordered(tree)
          .with_product(e4m3fn_sat, stochastic),
      A{"fixed8_f3_wrap toward_zero pairwise", fixed_ints(8, 3, true), zero}.ordered(tree),
      A{"fixed24_f140_wrap stochastic pairwise", fixed_ints(24, 140, true), stochastic}
          .ordered(tree)
          .drawing(24),
      // Kahan's sums.
      A{"e6m9 compensated", e6m9}.ordered(kahan),
      A{"e5m10 toward_zero compensated, chunk 9", e5m10, zero}.ordered(kahan).chunked(9),
      A{"bf16 toward_negative compensated, product e4m3", bf16, down}.ordered(kahan).with_product(
          e4m3),
      A{"fixed9_f4_wrap compensated", fixed_ints(9, 4, true)}.ordered(kahan),
      // Aligned blocks.
      A{"e8m13 toward_zero, blocks of 8, outer fp32 nearest", float_ints(8, 13), zero}
          .aligned(8, 13)
          .chunked(20, fp32)
          .outer_rounded(Rounding::kNearestEven),
      A{"e5m10, blocks of 256", e5m10}.aligned(256, 40),
      A{"fp32 toward_negative, blocks of 3", fp32, down}.aligned(3, 1),
      A{"e5m4 stochastic, blocks of 32, product e4m3", float_ints(5, 4), stochastic}
          .aligned(32, 10)
          .with_product(e4m3),
      A{"fixed16_f8 nearest_away, blocks of 5", fixed_ints(16, 8), away}.aligned(5, 30),
  };
}

// Tensor cores, and what no known tensor core does: rounding modes, draws, blocks that take turns.
inline std::vector<AccumulatorSpec> operand_accumulators() {
  const FormatInts e4m3 = float_ints(4, 3, {Specials::kFn, Overflow::kNan});
  const FormatInts e5m2 = float_ints(5, 2);
  const FormatInts fp16 = float_ints(5, 10);
  const FormatInts bf16 = float_ints(8, 7);
  const FormatInts fp32 = float_ints(8, 23);
  const FormatInts e8m13 = float_ints(8, 13);
  const Rounding zero = Rounding::kTowardZero;
  using A = AccumulatorSpec;
  return {
      A{"e8m13 toward_zero, blocks of 32 by e4m3fn", e8m13, zero}.aligned(32, 13).of_operands(e4m3,
                                                                                              e4m3),
      A{"the same by e5m2 and e4m3fn, chunk 64, outer fp32 nearest", e8m13, zero}
          .aligned(32, 13)
          .of_operands(e5m2, e4m3)
          .chunked(64, fp32)
          .outer_rounded(Rounding::kNearestEven),
      A{"fp32 toward_zero, blocks of 16 by fp16", fp32, zero}.aligned(16, 25).of_operands(fp16,
                                                                                          fp16),
      A{"fp32 toward_zero, blocks of 4 by fp16", fp32, zero}.aligned(4, 23).of_operands(fp16, fp16),
      A{"fp32 toward_zero, blocks of 8 by bf16 from 2^-132", fp32, zero}
          .aligned(8, 24)
          .of_operands(bf16, bf16)
          .least(-132),
      A{"e5m10, blocks of 8 by e4m3fn, two in turn, chunk 48", fp16}
          .aligned(8, 20)
          .of_operands(e4m3, e4m3, 2)
          .chunked(48),
      A{"e4m3fn toward_negative, blocks of 4 by e5m2", e4m3, Rounding::kTowardNegative}
          .aligned(4, 6)
          .of_operands(e5m2, e5m2),
      A{"bf16 stochastic 13, blocks of 16 by bf16 from 2^-20", bf16, Rounding::kStochastic}
          .aligned(16, 12)
          .of_operands(bf16, bf16)
          .least(-20)
          .drawing(13),
  };
}

}  // namespace lpk_fuzz
