// What libFuzzer's bytes mean: small numbers, formats and accumulators that lpkernels would accept.
// When the bytes end, everything that is asked for is 0.
#pragma once

#include "sums.h"

namespace lpk_fuzz {

class Input {
 public:
  Input(const uint8_t* bytes, size_t count) : at_(bytes), end_(bytes + count) {}

  // A number of 0 .. count - 1; count is 256 at most.
  int below(int count) { return at_ == end_ ? 0 : *at_++ % count; }
  bool once_in(int count) { return below(count) == count - 1; }
  // The numbers of a tensor: what is left of the bytes, then pseudo-random ones.
  Source source() const { return {at_, static_cast<size_t>(end_ - at_)}; }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

template <class T>
const T& one_of(const std::vector<T>& list, Input& in) {
  return list[static_cast<size_t>(in.below(static_cast<int>(list.size())))];
}

// A number of least .. most: in half of the cases one of the four at either end.
inline int at_ends(int least, int most, Input& in) {
  const int further = std::min(in.below(in.once_in(2) ? 256 : 4), most - least);
  return in.once_in(2) ? least + further : most - further;
}

// Any float format whose values float32 holds: its exponents end at 127, and its last place is
// 2^-149 or larger.
inline FormatInts any_float(Input& in) {
  using lpk::Specials;
  const int exp_bits = 1 + in.below(8), man_bits = in.below(24), top = (1 << exp_bits) - 1;
  FloatOptions options;
  options.specials = static_cast<Specials>(in.below(5));
  options.overflow = static_cast<lpk::Overflow>(in.below(3));
  options.subnormals = !in.once_in(4);
  const bool one_zero = options.specials >= Specials::kFnuz;
  options.is_unsigned = one_zero && in.once_in(2);
  const int bits = (options.is_unsigned ? 0 : 1) + exp_bits + man_bits;
  if (one_zero && (bits < 3 || bits > 16)) return any_float(in);
  if (exp_bits == 8 && man_bits == 23) options.specials = Specials::kIeee;
  if (exp_bits == 1 && (options.specials == Specials::kIeee || man_bits == 0))
    options.specials = Specials::kNone;
  const bool fn = options.specials == Specials::kFn;
  if ((fn || options.specials == Specials::kFnuz) && options.overflow == lpk::Overflow::kInfinity)
    options.overflow = lpk::Overflow::kNan;
  const bool top_lost = options.specials == Specials::kIeee || (fn && man_bits == 0);
  options.bias = at_ends(top - top_lost - 127, 150 - man_bits, in);
  return float_ints(exp_bits, man_bits, options);
}

inline FormatInts any_fixed(Input& in) {
  const int word_bits = 1 + in.below(24);
  const int frac_bits = at_ends(std::max(word_bits - 128, -127), 149, in);
  return fixed_ints(word_bits, frac_bits, in.once_in(2), in.once_in(2));
}

// The formats of the tests, and any that lpkernels has.
inline FormatInts any_format(Input& in) {
  static const std::vector<NamedFormat> kLists[] = {narrow_float_formats(), wide_float_formats(),
                                                    fixed_formats(), table_formats()};
  const int list = in.below(7);
  if (list < 4) return one_of(kLists[list], in).ints;
  return list == 4 ? any_fixed(in) : any_float(in);
}

inline Rounding any_rounding(Input& in) { return kRoundings[in.below(7)]; }

// Half of the accumulators are the tests', which have every order of sums.
inline AccumulatorSpec any_accumulator(Input& in) {
  static const std::vector<AccumulatorSpec> kListed = [] {
    std::vector<AccumulatorSpec> all = accumulators();
    const std::vector<AccumulatorSpec> more = table_accumulators();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  static const std::vector<AccumulatorSpec> kOfOperands = operand_accumulators();
  const int kind = in.below(4);
  if (kind == 0) return one_of(kListed, in);
  if (kind == 1) return one_of(kOfOperands, in);
  AccumulatorSpec spec{"any", any_format(in), any_rounding(in)};
  if (in.once_in(3)) spec = spec.with_product(any_format(in), any_rounding(in));
  if (in.once_in(2)) {
    spec = spec.chunked(1 + in.below(40));
    if (in.once_in(2)) spec = spec.chunked(spec.chunk, any_format(in));
    if (in.once_in(2)) spec = spec.outer_rounded(any_rounding(in));
  }
  const int order = in.below(6);
  if (order == 0) spec = spec.ordered(lpk::Order::kPairwise);
  if (order == 1 && spec.rounding != Rounding::kStochastic)
    spec = spec.ordered(lpk::Order::kCompensated);
  if (order == 2 || order == 3) spec = spec.aligned(1 + in.below(40), 1 + in.below(30));
  if (order == 3 && spec.fmt[0] == 0 && !spec.has_product)
    spec = spec.of_operands(any_float(in), any_float(in));
  return spec.drawing(1 + in.below(24), in.once_in(2) ? lpk::Rng::kPhilox : lpk::Rng::kFast);
}

// The exponent of the scale of operands: 0, or one that brings products into the sums' format.
inline int any_exponent(const AccumulatorSpec& spec, Input& in) {
  return in.once_in(2) ? fitting_exponent(spec.fmt) - in.below(16) : 0;
}

}  // namespace lpk_fuzz
