// Single steps of the certified CUDA kernels where rounding twice goes wrong first: sums beside the
// midpoint of two neighbours of the format, made of a product of r bits. Then the additions between
// chunks.
#include <algorithm>
#include <map>
#include <string>

#include "cuda/rules/convert_rule.h"
#include "cuda/rules/double_rules.h"
#include "cuda/rules/outer_rule.h"
#include "tests/check.h"
#include "tests/groups.h"
#include "tests/specs.h"
#include "tests/sums.h"
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

std::vector<NamedFormat> outer_formats() {
  std::vector<NamedFormat> all;
  // Sums may be -0 in formats with one zero until they end.
  for (const NamedFormat& format : narrow_float_formats()) {
    if (!has_one_zero(format.ints)) all.push_back(format);
  }
  for (const NamedFormat& format : wide_float_formats()) all.push_back(format);
  all.push_back({"e8m7", float_ints(8, 7)});
  all.push_back({"e8m21", float_ints(8, 21)});
  all.push_back({"e6m21", float_ints(6, 21)});
  return all;
}

void check_added(const lpk::cuda::OuterRule& rule, const float (&outer)[16],
                 const float (&part)[16], const float (&want)[16], const char* name) {
  float sums[16];
  std::copy(outer, outer + 16, sums);
  rule.add(sums, part);
  for (int n = 0; n < 16; ++n)
    CHECK_SAME(lpk::canonical_float(sums[n]), want[n],
               text("%s: %s + %s", name, shown(outer[n]).c_str(), shown(part[n]).c_str()));
}

// Compares outer + part in float32 with the sum made odd in double, and counts the way taken.
void check_outer_rule(const NamedFormat& format, std::map<lpk::cuda::OuterWay, int64_t>* ways) {
  const AccumulatorSpec spec = AccumulatorSpec{"fp32", float_ints(8, 23)}.chunked(4, format.ints);
  const lpk::Accumulator acc = lpk::accumulator_from(spec.ints().data());
  const lpk::cuda::OuterWay way = lpk::cuda::outer_way(acc);
  ++(*ways)[way];
  if (way == lpk::cuda::OuterWay::kNone) return;
  using lpk::cuda::Closing;
  const lpk::cuda::OuterRule any(acc, Closing::kAny), floorless(acc, Closing::kFloorless),
      inside(acc, Closing::kInside);
  Source source(static_cast<uint64_t>(format.ints[1] * 100 + format.ints[2]));
  const int top = std::ilogb(acc.outer.max);
  for (int round = 0; round < 1000; ++round) {
    float outer[16], part[16], want[16];
    for (int n = 0; n < 16; ++n) {
      const int low = acc.outer.emin - acc.outer.man_bits - 3;
      const float x =
          source.once_in(20) ? special(source) : source.number(std::max(low, -149), top);
      outer[n] = static_cast<float>(lpk::round_to<double>(x, acc.outer, Rounding::kNearestEven, 0));
      // A part lies near the outer sum, near a tie of it, or anywhere.
      const int at = outer[n] != 0 && std::isfinite(outer[n]) ? std::ilogb(outer[n]) : 0;
      part[n] = source.once_in(20)  ? special(source)
                : source.once_in(3) ? source.number(-149, 127)
                : source.once_in(2)
                    ? std::ldexp(static_cast<float>(source.between(-9, 9)),
                                 std::max(at - acc.outer.man_bits - source.between(0, 4), -149))
                    : source.number(std::max(at - 26, -149), std::min(at + 3, 127));
      want[n] = lpk::canonical_float(
          lpk::add_rounded<double>(outer[n], part[n], acc.outer, Rounding::kNearestEven, 0));
    }
    check_added(any, outer, part, want, format.name);
    // Multiples of the last place, with overflow and without.
    const int last = acc.outer.emin - acc.outer.man_bits;
    for (int n = 0; n < 16; ++n) {
      const float low = std::ldexp(static_cast<float>(source.between(-40, 40)), last);
      if (!(std::fabs(part[n]) >= std::ldexp(1.0f, last + 24))) part[n] = low;
      want[n] = lpk::canonical_float(
          lpk::add_rounded<double>(outer[n], part[n], acc.outer, Rounding::kNearestEven, 0));
    }
    check_added(floorless, outer, part, want, format.name);
    for (int n = 0; n < 16; ++n) {
      const bool far = !(std::fabs(part[n]) < acc.outer.max / 8 && std::fabs(part[n]) < 0x1p99f);
      if (far) part[n] = 0.0f;
      if (!(std::fabs(outer[n]) < acc.outer.max / 8 && std::fabs(outer[n]) < 0x1p99f))
        outer[n] = 0.0f;
      want[n] = lpk::canonical_float(
          lpk::add_rounded<double>(outer[n], part[n], acc.outer, Rounding::kNearestEven, 0));
    }
    check_added(inside, outer, part, want, format.name);
  }
}

}  // namespace

void test_cuda_rules() {
  std::map<lpk::cuda::OuterWay, int64_t> ways;
  for (const NamedFormat& format : outer_formats()) check_outer_rule(format, &ways);
  CHECK(ways.size() == 4);
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
