// Block formats: the tiles of a tensor share a scale s, and a tensor may have a scale t; values are
// q s t with codes q. lpkernels/reference/{blocks,scaled}.py define them; here are the steps
// "exact", in which every result is rounded once from the exact number.
#pragma once

#include "accumulate.h"

namespace lpk {

// The number that is added to X in the byte of a scale 2^X, and the byte of a NaN scale.
constexpr int kScaleBias = 127;
constexpr uint32_t kNanScale = 255;

// The scale of a byte of e8m0.
LPK_HD float scale_of_byte(uint32_t code) {
  if (code == kNanScale) return canonical_nan();
  return static_cast<float>(power_of_two(static_cast<int>(code) - kScaleBias));
}

enum class ScaleKind : int32_t { kE8m0 = 0, kFp32 = 1, kFloat = 2, kTensor = 3, kLine = 4 };
enum class ScaleRule : int32_t { kFloor = 0, kCeil = 1, kEven = 2, kUp = 3, kNearest = 4 };
// The metrics that choose between two codes of a tile; in the place of a target.
enum class Candidates : uint32_t { kMae = 1, kMse = 2 };
// The values to which the largest of a tile is mapped then.
constexpr double kSix = 6, kFour = 4;
enum class Steps : int32_t { kExact = 0, kTe = 1, kTorchao = 2, kDeepgemm = 3 };

// A contiguous tensor as `outer` matrices of rows x cols, cut into tiles of tall x wide elements:
// Grid of lpkernels/formats/grids.py.
struct Grid {
  int64_t outer, rows, cols, tall, wide;

  int64_t down() const { return (rows + tall - 1) / tall; }
  int64_t across() const { return (cols + wide - 1) / wide; }
  int64_t count() const { return outer * rows * cols; }
  int64_t tiles() const { return outer * down() * across(); }
  // The lines along which tiles lie: columns where tiles are one column wide, else rows.
  int64_t lines() const { return outer * (wide == 1 ? cols : rows); }
  // Rows without short tiles follow each other in one long row, unless lines stay apart.
  Grid joined(bool by_line = false) const {
    if (by_line || tall != 1 || cols % wide != 0) return *this;
    return {1, 1, count(), 1, wide};
  }
};

constexpr int64_t kMantissaBits = (int64_t{1} << 52) - 1;

LPK_HD Format saturating(Format f) {
  f.overflow = Overflow::kSaturate;
  f.beyond = f.max;
  return f;
}

// The integers of the codes' format. Codes saturate, and symmetric integers of b bits are floats of
// one exponent bit and b - 2 bits of mantissa, whose zeros have signs. Tables stay.
struct CodeIntegers {
  int64_t ints[kFormatInts];

  CodeIntegers() = default;
  CodeIntegers(const int64_t* element, double target) {
    std::memcpy(ints, element, sizeof ints);
    if (kind_of(ints) == Kind::kFloat) {
      ints[InFloat::kOverflow] = static_cast<int64_t>(Overflow::kSaturate);
    } else if (kind_of(ints) == Kind::kFixed && target <= fixed_format(element).max) {
      const int64_t man_bits = element[InFixed::kWordBits] - 2;
      const int64_t bias = 1 - man_bits + element[InFixed::kFracBits];
      const int64_t as_float[kFormatInts] = {static_cast<int64_t>(Kind::kFloat),
                                             1,
                                             man_bits,
                                             bias,
                                             static_cast<int64_t>(Specials::kNone),
                                             1,
                                             static_cast<int64_t>(Overflow::kSaturate),
                                             0};
      std::memcpy(ints, as_float, sizeof ints);
    }
  }
};

struct BlockFormat {
  ScaleKind kind;
  ScaleRule rule;
  Steps steps;
  bool mx;          // OCP's: blocks of 32 with a power of two
  bool is_integer;  // the element, whose codes have one zero
  bool is_table;    // the element
  double element_max;
  double target;        // M, the value that a block's largest maps to
  double scale_target;  // B, the scale of the block that holds the largest of a tensor or line
  bool two_candidates, squares;  // of every tile, chosen by the squares of the errors
  CodeIntegers codes;
  Format element;  // of the codes
  Format scale;    // saturating; float32 where the scale is no narrow format
  // Powers of two: X = floor(log2 a) - top, and one more where `carry` added to the mantissa of a
  // carries.
  int64_t carry;
  int top;

  BlockFormat() = default;
  // BlockFormat.to_ints of lpkernels/formats.
  explicit BlockFormat(const int64_t* ints)
      : kind(static_cast<ScaleKind>(ints[InBlock::kScale])),
        rule(static_cast<ScaleRule>(ints[InBlock::kRule])),
        steps(static_cast<Steps>(ints[InBlock::kSteps])) {
    mx = kind == ScaleKind::kE8m0 && ints[InBlock::kSize] == 32 && ints[InBlock::kLines] == 0;
    const int64_t* element_ints = ints + InBlock::kElement;
    is_integer = kind_of(element_ints) == Kind::kFixed;
    const Format whole = number_format(element_ints);
    is_table = whole.kind == Kind::kTable;
    element_max = is_table && whole.max < -whole.lowest ? -whole.lowest : whole.max;
    const uint32_t low = static_cast<uint32_t>(ints[InBlock::kTarget]);
    squares = low == static_cast<uint32_t>(Candidates::kMse);
    two_candidates = squares || low == static_cast<uint32_t>(Candidates::kMae);
    target = low == 0 || two_candidates ? element_max : float_of_bits(low);
    codes = CodeIntegers(element_ints, target);
    element = number_format(codes.ints);
    const bool narrow = kind == ScaleKind::kFloat || has_tensor_scale();
    scale = narrow ? saturating(float_format(ints + InBlock::kScaleFormat))
                   : saturating(float32_format());
    const uint32_t high = static_cast<uint32_t>(ints[InBlock::kTarget] >> 32);
    scale_target = high == 0 ? scale.max : float_of_bits(high);
    set_rule(is_integer ? static_cast<int>(element_ints[InFixed::kWordBits]) - 2
                        : static_cast<int>(element_ints[InFloat::kManBits]));
  }

  bool has_tensor_scale() const { return kind == ScaleKind::kTensor || by_line(); }
  bool by_line() const { return kind == ScaleKind::kLine; }
  // Whether zero codes are +0, as integers have them, and DeepGEMM's FP4.
  bool has_one_zero() const { return is_integer || element.one_zero || ties_toward_zero(); }
  bool ties_toward_zero() const {
    return steps == Steps::kDeepgemm && element.exp_bits == 2 && element.man_bits == 1;
  }

 private:
  void set_rule(int man_bits) {
    const double largest = rule == ScaleRule::kUp ? target : element_max;
    top = log2_of(largest);
    carry = 0;
    if (rule == ScaleRule::kCeil) carry = kMantissaBits;
    if (rule == ScaleRule::kEven) carry = int64_t{1} << (51 - man_bits);
    if (rule == ScaleRule::kUp) carry = kMantissaBits - (bits_of_double(largest) & kMantissaBits);
  }
};

// t of a tensor or a line whose largest finite magnitude is amax.
LPK_HD double exact_tensor_scale(double amax, const BlockFormat& b) {
  if (!(amax >= 0 && amax < HUGE_VAL)) return static_cast<double>(NAN);
  const double quotient = quotient_to_odd<double>(amax, b.scale_target * b.target);
  return round_to_float<double>(quotient, saturating(float32_format()), Rounding::kNearestEven,
                                0.0);
}

// s of tiles whose largest magnitudes `a` are finite and map to `target`.
template <class D>
LPK_HD D exact_scale(D a, const BlockFormat& b, D t, double target) {
  using L = Lanes<D>;
  if (b.kind == ScaleKind::kE8m0) {
    auto x = ((L::bits(a) + b.carry) >> 52) - (1023 + b.top);
    const auto zero = x & 0;
    x = x < -kScaleBias ? zero - kScaleBias : x;
    x = x > kScaleBias ? zero + kScaleBias : x;
    return L::value((x + 1023) << 52);
  }
  const D divisor = target * t;  // of 24 bits each: exact
  const auto none = divisor == 0.0;
  const Rounding mode =
      b.rule == ScaleRule::kUp ? Rounding::kTowardPositive : Rounding::kNearestEven;
  const D quotient = quotient_to_odd<D>(a, none ? L::all(1.0) : divisor);
  const D s = round_to_float<D>(quotient, b.scale, mode, L::all(0.0));
  const D zero = L::all(b.kind == ScaleKind::kFp32 ? 1.0 : 0.0);
  return none ? L::all(0.0) : a == 0.0 ? zero : s;
}

// x / (s t) for rounding to a code: zeros, with the sign of x, where that is a division by 0.
template <class D>
LPK_HD D exact_shrunk(D x, D s, D t) {
  using L = Lanes<D>;
  const D divisor = s * t;  // of 24 bits each: exact
  const D sign = L::value(L::bits(x) & kSignBit);
  return divisor == 0.0 ? sign : quotient_to_odd<D>(x, divisor);
}

// q s t made odd, for rounding to float32. A code has 24 bits at most, and so has s.
template <class D>
LPK_HD D exact_value(D code, D s, D t) {
  return product_to_odd<D>(code * s, t);
}

}  // namespace lpk
