// The certified CUDA kernels at both ends of float32's exponents. A plan's scale and all numbers
// inside the rules must be normal floats there, and every sum must equal that of plain loops.
#include <string>

#include "cuda_block.h"
#include "cuda_run.h"
#include "tests/check.h"
#include "tests/groups.h"

namespace lpk_test {
namespace {

using lpk::cuda::Plan;

bool scales_floats(Tier tier) {
  if (tier == Tier::kTruncated || tier == Tier::kStochastic) return true;
  return tier >= Tier::kTwoStep && tier <= Tier::kFloorOdd && tier != Tier::kTwoStepClipped &&
         tier != Tier::kSplitClipped && tier != Tier::kFloorClipped;
}
bool has_floor(Tier tier) {
  return tier == Tier::kFloor || tier == Tier::kFloorWatched || tier == Tier::kFloorOdd;
}

void check_constants(const Plan& plan, const lpk::Format& f) {
  if (!scales_floats(plan.tier)) return;
  CHECK(plan.shift >= -126 && plan.shift <= 127);
  if (!has_floor(plan.tier)) return;
  const int binade = f.emin + plan.shift;
  // The floor multiplies the binade by 1.5 2^(23 - man_bits).
  CHECK(binade >= -126 && binade + 24 - f.man_bits <= 127);
}

// Numbers of at most `bits` bits whose leading bit is about 2^exponent. They stay normal floats.
CudaSums::Values about(int bits, int exponent) {
  return [=](Source& source) {
    const int most = (1 << bits) - 1;
    const auto digits = static_cast<float>(source.between(-most, most));
    const int at = source.between(exponent - 1, exponent + 1);
    return std::ldexp(digits, std::min(std::max(at, -126 + bits), 127) - bits + 1);
  };
}

std::vector<AccumulatorSpec> accumulators_of(const FormatInts& f) {
  using A = AccumulatorSpec;
  const std::string name = text("e%dm%d bias %d specials %d subnormals %d overflow %d", int(f[1]),
                                int(f[2]), int(f[3]), int(f[4]), int(f[5]), int(f[6]));
  const A sum{name, f};
  const A stochastic{name + " stochastic", f, Rounding::kStochastic};
  return {sum, A{name + " chunk 5", f}.chunked(5),
          A{name + " chunk 3 outer fp32", f}.chunked(3, float_ints(8, 23)),
          A{name + " toward_zero", f, Rounding::kTowardZero},
          A{stochastic}.chunked(8).drawing(4).outer_rounded(Rounding::kNearestEven)};
}

std::vector<FormatInts> formats() {
  const Specials ieee = Specials::kIeee;
  std::vector<FormatInts> all;
  for (const int man_bits : {1, 3, 7, 10, 11, 13, 15, 20, 21, 22, 23}) {
    all.push_back(float_ints(8, man_bits));
    all.push_back(float_ints(8, man_bits, {ieee, Overflow::kSaturate}));
  }
  all.push_back(float_ints(8, 10, {ieee, Overflow::kInfinity, false}));
  all.push_back(float_ints(8, 13, {ieee, Overflow::kNan}));
  for (const int man_bits : {2, 5, 11}) {
    // Far above 1, and far below it.
    for (const int bias : {-100, -60, 60, 130})
      all.push_back(float_ints(4, man_bits, {Specials::kNone, Overflow::kSaturate, true, bias}));
  }
  return all;
}

// Sums of equal products below 2^h, each rounded up, until the last is 2^h times the number of
// products: the first power of two beyond the format.
void check_rounded_up(Source& source) {
  for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate, Overflow::kNan}) {
    for (const int man_bits : {1, 2, 3}) {
      for (const int exp_bits : {2, 4, 5}) {
        const FormatInts ints = float_ints(exp_bits, man_bits, {Specials::kIeee, overflow});
        const int beyond = lpk::overflow_exponent(lpk::float_format(ints.data()));
        for (int bits = 0; bits <= man_bits + 1; ++bits) {
          const auto factor = [](Source&) { return 63.0f / 64; };
          const auto other = [=](Source&) { return std::ldexp(63.0f / 64, beyond - bits); };
          const AccumulatorSpec spec{text("e%dm%d rounded up", exp_bits, man_bits), ints};
          CudaSums sums({1, 2, 3, 1 << bits, false, false}, spec, factor, other, source);
          const Ran ran = run_product(&sums.job);
          sums.check(text("tier %d, %d products", static_cast<int>(ran.tier), 1 << bits));
        }
      }
    }
  }
}

}  // namespace

void test_cuda_ends() {
  Source source(31);
  check_rounded_up(source);
  int64_t certified = 0;
  for (const FormatInts& ints : formats()) {
    const lpk::Format f = lpk::float_format(ints.data());
    for (const AccumulatorSpec& spec : accumulators_of(ints)) {
      // Products lie about the ends of float32, about those of the format, and where scales have
      // theirs.
      for (const int product : {126, 123, 119, 100, lpk::log2_of(f.max) - 2, 41, f.emin,
                                f.emin - f.man_bits, -60, -110, -130, -149, -200, -240}) {
        const bool gathers = source.once_in(3);
        const int bits = source.between(1, 12);
        const int first = std::max(-126, std::min(127, product / 2 + source.between(-60, 60)));
        const CudaProblem p{1, 2, 3, 11, gathers, source.once_in(4)};
        CudaSums sums(p, spec, about(bits, first), about(source.between(1, 12), product - first),
                      source);
        sums.job.fast_doubles = source.once_in(2);
        if (lpk::cuda::may_certify(sums.job.acc))
          check_constants(lpk::cuda::plan_for(sums.job), sums.job.acc.fmt);
        const Ran ran = run_product(&sums.job);
        certified += scales_floats(ran.tier) && !ran.redone;
        sums.check(text("tier %d, products about 2^%d,", static_cast<int>(ran.tier), product));
      }
    }
  }
  CHECK(certified > 300);
}

}  // namespace lpk_test
