// The certified kernels of csrc/cuda on the host, with their plan, their finish and the tiles done
// again, against plain loops.
#include <map>
#include <string>

#include "cuda_block.h"
#include "cuda_run.h"
#include "tests/check.h"
#include "tests/groups.h"

namespace lpk_test {
namespace {

struct Operands {
  const char* name;
  CudaSums::Values left, right;
};

std::vector<Operands> all_operands() {
  return {
      {"few bits around 1", numbers(3, -2, 2), numbers(3, -2, 2)},
      {"few bits, 2^-12", numbers(2, -8, -4), numbers(3, -8, -4)},
      {"few bits, the last place of e5m10", numbers(1, -13, -11), numbers(2, -12, -11)},
      {"few bits, large", numbers(3, 4, 9), numbers(3, 2, 8)},
      {"few bits, below 2^8", numbers(2, -1, 2), numbers(1, 0, 1)},
      {"few bits, tiny to 2^8", numbers(2, -8, 2), numbers(1, -5, 1)},
      {"few bits, to 2^16", numbers(3, -4, 5), numbers(3, -9, 7)},
      {"few bits, 2^-30", numbers(3, -30, -24), numbers(2, -3, 3)},
      {"bf16", numbers(8, -6, 1), numbers(8, -6, 1)},
      {"half", numbers(11, -8, 0), numbers(11, -7, 1)},
      {"bf16, far apart", numbers(8, -20, 6), numbers(8, -20, 6)},
      {"11 bits, far apart", numbers(5, -25, 12), numbers(6, -6, 4)},
      {"11 bits with specials", specials_in(numbers(5, -12, 6)), numbers(6, -6, 2)},
      {"float", numbers(23, -3, 1), numbers(23, -3, 1)},
      {"float by few bits", numbers(23, -9, 1), numbers(3, -9, 1)},
      {"half with specials", specials_in(numbers(11, -3, 1)), numbers(8, -3, 1)},
      {"zeros", numbers(3, -2, 2), [](Source& s) { return s.once_in(2) ? -0.0f : 0.0f; }},
      {"negative zeros", [](Source&) { return 0.0f; }, [](Source&) { return -0.0f; }},
      {"wide", [](Source& s) { return operand(Data::kWide, s); }, numbers(3, -2, 2)},
  };
}

std::vector<AccumulatorSpec> certified_accumulators() {
  const FormatInts e5m10 = float_ints(5, 10);
  const FormatInts e6m9 = float_ints(6, 9);
  const FormatInts bf16 = float_ints(8, 7);
  const FormatInts fp32 = float_ints(8, 23);
  const FormatInts sat = float_ints(5, 10, {Specials::kIeee, Overflow::kSaturate});
  const FormatInts e4m3fn_sat = float_ints(4, 3, {Specials::kFn, Overflow::kSaturate});
  const FormatInts nosub = float_ints(6, 9, {Specials::kIeee, Overflow::kInfinity, false});
  const FormatInts one_zero = float_ints(5, 6, {Specials::kFnuz, Overflow::kNan});
  const FormatInts narrow = float_ints(4, 6, {Specials::kIeee, Overflow::kNan});
  using A = AccumulatorSpec;
  std::vector<AccumulatorSpec> all;
  for (const FormatInts& f : {e5m10, e6m9, bf16, sat, e4m3fn_sat, nosub, narrow, fp32,
                              float_ints(5, 21), float_ints(8, 11), float_ints(5, 1),
                              float_ints(5, 22), float_ints(8, 22), float_ints(5, 23), one_zero}) {
    const std::string name = text("e%dm%d specials %d subnormals %d overflow %d", int(f[1]),
                                  int(f[2]), int(f[4]), int(f[5]), int(f[6]));
    all.push_back(A{name, f});
    all.push_back(A{name + " chunk 24", f}.chunked(24));
    all.push_back(A{name + " chunk 5 outer e5m10", f}.chunked(5, e5m10));
    all.push_back(A{name + " toward_zero", f, Rounding::kTowardZero});
    all.push_back(
        A{name + " toward_zero chunk 16", f, Rounding::kTowardZero}.chunked(16).outer_rounded(
            Rounding::kNearestEven));
    all.push_back(A{name + " product e6m13", f}.with_product(float_ints(6, 13)));
  }
  const FormatInts narrow_sat = float_ints(4, 6, {Specials::kIeee, Overflow::kSaturate});
  all.push_back(A{"e4m6 saturate", narrow_sat});
  // Splitting in three steps, with sums that leave the format.
  for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
    const FormatInts e4m11 = float_ints(4, 11, {Specials::kIeee, overflow});
    all.push_back(A{"e4m11", e4m11});
    all.push_back(A{"e4m11 chunk 24", e4m11}.chunked(24));
  }
  for (const FormatInts& f : {narrow, e5m10, nosub, e6m9, float_ints(5, 1)})
    all.push_back(A{"chunk 60", f}.chunked(60, fp32));
  for (const int bits : {8, 7, 3, 1}) {
    for (const FormatInts& f : {e5m10, e6m9, bf16, nosub, float_ints(6, 4), float_ints(7, 14)}) {
      const std::string name = text("e%dm%d stochastic %d", int(f[1]), int(f[2]), bits);
      all.push_back(A{name, f, Rounding::kStochastic}.drawing(bits));
      all.push_back(A{name + " chunk 16", f, Rounding::kStochastic}
                        .chunked(16, e6m9)
                        .drawing(bits)
                        .outer_rounded(Rounding::kNearestEven));
    }
  }
  for (const Rounding mode : {Rounding::kTowardPositive, Rounding::kTowardNegative})
    all.push_back(A{"fp32 directed", fp32, mode});
  return all;
}

}  // namespace

void test_cuda_certified() {
  Source source(99);
  std::map<Tier, int64_t> kept;
  for (const AccumulatorSpec& spec : certified_accumulators()) {
    for (const Operands& data : all_operands()) {
      const bool gathers = source.once_in(2);
      const CudaProblem p = gathers ? CudaProblem{2, 3, 5, 38, true, source.once_in(2)}
                                    : CudaProblem{1, 7, 11, 61, false, source.once_in(2)};
      CudaSums sums(p, spec, data.left, data.right, source);
      sums.job.fast_doubles = source.once_in(2);
      const Ran ran = run_product(&sums.job);
      if (!ran.redone) ++kept[ran.tier];
      sums.check(text("tier %d, %s,", static_cast<int>(ran.tier), data.name));
    }
  }
  // Sums without products, and outputs of several tiles.
  const Operands data = all_operands()[0];
  for (const AccumulatorSpec& spec : certified_accumulators()) {
    CudaSums sums({1, 2, 3, 0, false, true}, spec, data.left, data.right, source);
    run_product(&sums.job);
    sums.check("no products,");
  }
  for (const bool gathers : {false, true}) {
    const AccumulatorSpec spec{"e6m9 chunk 9", float_ints(6, 9)};
    CudaSums sums({2, 140, 131, 12, gathers, true}, spec.chunked(9), data.left, data.right, source);
    run_product(&sums.job);
    sums.check("several tiles,");
  }
  // Every certified kernel ran, and kept what it did.
  for (int tier = 1; tier <= static_cast<int>(Tier::kHardwareFloat); ++tier) {
    const bool found = kept[static_cast<Tier>(tier)] > 0;
    if (!found) std::printf("tier %d kept nothing\n", tier);
    CHECK(found);
  }
}

}  // namespace lpk_test
