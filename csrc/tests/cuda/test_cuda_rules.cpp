// Single steps of the certified CUDA kernels where rounding twice goes wrong first: sums beside the
// midpoint of two neighbours of the format, made of a product of r bits.
#include <string>

#include "cuda/rules/convert_rule.h"
#include "cuda/rules/double_rules.h"
#include "tests/check.h"
#include "tests/groups.h"
#include "tests/specs.h"
#include "tests/values.h"

namespace lpk_test {
namespace {

using lpk::Format;
using lpk::cuda::Limit;

// The number of `bits` significant bits that is nearest to x; zero for zero.
double cut(double x, int bits) {
  if (x == 0) return 0;
  const int last = std::ilogb(x) - bits + 1;
  return std::ldexp(std::nearbyint(std::ldexp(x, -last)), last);
}

// A value of the format with its leading bit at 2^exponent, or a multiple of its subnormals' step.
double value(const Format& f, int exponent, Source& source) {
  const int q = f.man_bits + 1;
  const int64_t significand = (int64_t{1} << f.man_bits) | source.between(0, (1 << f.man_bits) - 1);
  const int last = std::max(exponent - q + 1, f.emin - f.man_bits);
  const int64_t kept = significand >> std::max(0, last - (exponent - q + 1));
  return std::ldexp(static_cast<double>(source.once_in(2) ? kept : -kept), last);
}

struct Pair {
  double sum, product;
};

// The product of at most r bits brings the sum to a midpoint, or nearly.
Pair near_midpoint(const Format& f, int r, int low, int high, Source& source) {
  const double sum = value(f, source.between(low, high), source);
  const double target = value(f, source.between(low, high), source);
  const int last = std::max(target == 0 ? -2000 : std::ilogb(target), f.emin) - f.man_bits;
  const double middle = target + std::ldexp(1.0, last - 1);
  const double product = cut(middle - sum, r);
  if (product == 0 || source.once_in(3)) return {sum, product};
  const double unit = std::ldexp(1.0, std::ilogb(product) - r + 1);
  return {sum, cut(product + (source.once_in(2) ? unit : -unit), r)};
}

double exact(const Pair& x, const Format& f) {
  return lpk::round_to_float_nearest_even<double>(lpk::odd_sum<double>(x.sum, x.product), f);
}

constexpr int kPairs = 20000;

template <class Rule>
void check_rule(const char* name, const FormatInts& ints, int r, int low, int high) {
  const Format f = lpk::float_format(ints.data());
  const Rule rule(f, 0);
  Source source(7 * r + f.man_bits);
  for (int n = 0; n < kPairs; ++n) {
    const Pair x = near_midpoint(f, r, low, high, source);
    using Real = typename Rule::Real;
    const Real factors[] = {1, 2};
    Real sums[] = {static_cast<Real>(x.sum), static_cast<Real>(x.sum)};
    add_two(rule, static_cast<Real>(x.product), factors, sums);
    const double want = exact(x, f);
    // Only some rules keep the sign of a zero.
    const float zero = Rule::kSigned ? -0.0f : 0.0f;
    CHECK_SAME(static_cast<float>(sums[0]) + zero, static_cast<float>(want) + zero,
               text("%s, e%dm%d, products of %d bits: %a + %a", name, int(ints[1]), int(ints[2]), r,
                    x.sum, x.product));
  }
}

}  // namespace

void test_cuda_rules() {
  using lpk::cuda::ConvertRule;
  const FormatInts half = float_ints(5, 10);
  for (int r : {1, 6, 8, 10, 11}) {
    check_rule<ConvertRule>("conversions", half, r, -26, 16);
    check_rule<ConvertRule>("conversions", half, r, -2, 2);
  }
  using Split = lpk::cuda::SplitRule<lpk::cuda::NearestSum, Limit::kProved>;
  using Fused = lpk::cuda::TwoStepRule<lpk::cuda::NearestSum, Limit::kProved>;
  for (int r : {6, 8, 11}) {
    check_rule<Split>("splitting", float_ints(8, r > 10 ? 11 : 10), r, -9, 9);
    check_rule<Fused>("two multiply-adds", float_ints(8, 10), r, -9, 9);
    check_rule<Fused>("two multiply-adds", float_ints(8, 3), r > 10 ? 4 : r / 2, -9, 9);
  }
  using lpk::cuda::DoubleFloorRule;
  using lpk::cuda::DoubleSplitRule;
  for (int bits : {11, 15, 22, 23}) {
    for (int r : {8, 16, 22, 28}) {
      check_rule<DoubleSplitRule>("splitting in double", float_ints(8, bits), r, -12, 12);
      check_rule<DoubleFloorRule>("floor in double", float_ints(5, bits), r, -14 - bits - 2, 14);
    }
  }
}

}  // namespace lpk_test
