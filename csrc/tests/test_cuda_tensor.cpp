// Native chunks of csrc/cuda on the host: the tile's index maps, the additions between chunks, and
// whole products whose chunks are exact in float32 in any order.
#include <map>
#include <set>
#include <string>
#include <utility>

#include "../cuda/outer_rule.h"
#include "../cuda/tensor_map.h"
#include "check.h"
#include "cuda_block.h"
#include "cuda_run.h"
#include "groups.h"

namespace lpk_test {
namespace {

using lpk::cuda::TensorMap;
using Map = lpk::cuda::TensorMap;

void check_tensor_map() {
  std::set<std::pair<int, int>> outputs;
  for (int t = 0; t < Map::kThreads; ++t) {
    for (int n = 0; n < Map::kOutputs; ++n) outputs.insert({Map::row(t, n), Map::col(t, n)});
  }
  CHECK(outputs.size() == 128 * 128 && outputs.rbegin()->first == 127);
  for (const bool vectors : {false, true}) {
    std::set<std::pair<int, int>> fetched;
    for (int t = 0; t < Map::kThreads; ++t) {
      for (int p = 0; p < 2; ++p) {
        for (int e = 0; e < 4; ++e)
          fetched.insert({Map::fetched_pair(t, p), Map::fetched_lane(t, e, vectors)});
      }
    }
    CHECK(fetched.size() == 16 * 128 && fetched.rbegin()->first == 15);
  }
  // The 32 words that a warp reads at a time lie in 32 banks, and a warp reads every pair of steps
  // of its rows and columns.
  for (int warp = 0; warp < Map::kThreads; warp += 32) {
    std::set<int> left, right;
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < Map::kRows; ++i) {
        for (int word = 0; word < 4; ++word) {
          std::set<int> left_banks, right_banks;
          for (int t = warp; t < warp + 32; ++t) {
            left.insert(Map::left_word(t, i, word, h));
            left_banks.insert(Map::left_word(t, i, word, h) % 32);
            right.insert(Map::right_word(t, i, word % 2, h));
            right_banks.insert(Map::right_word(t, i, word % 2, h) % 32);
          }
          CHECK(left_banks.size() == 32 && right_banks.size() == 32);
        }
      }
    }
    CHECK(left.size() == 16 * 64 && right.size() == 16 * 32);
    CHECK(*left.begin() == Map::first_row(warp) && *right.begin() == Map::first_col(warp));
  }
}

std::vector<NamedFormat> outer_formats() {
  std::vector<NamedFormat> all = narrow_float_formats();
  for (const NamedFormat& format : wide_float_formats()) all.push_back(format);
  all.push_back({"e8m7", float_ints(8, 7)});
  all.push_back({"e8m21", float_ints(8, 21)});
  all.push_back({"e6m21", float_ints(6, 21)});
  return all;
}

// outer + part in float32 against the sum made odd in double. Returns the ways that were taken.
void check_outer_rule(const NamedFormat& format, std::map<lpk::cuda::OuterWay, int64_t>* ways) {
  const AccumulatorSpec spec = AccumulatorSpec{"fp32", float_ints(8, 23)}
                                   .ordered(lpk::Order::kNative)
                                   .chunked(4, format.ints);
  const lpk::Accumulator acc = lpk::accumulator_from(spec.ints().data());
  const lpk::cuda::OuterWay way = lpk::cuda::outer_way(acc);
  ++(*ways)[way];
  if (way == lpk::cuda::OuterWay::kNone) return;
  const lpk::cuda::OuterRule rule(acc, false);
  Source source(static_cast<uint64_t>(format.ints[1] * 100 + format.ints[2]));
  const int top = std::ilogb(acc.outer.max);
  for (int round = 0; round < 3000; ++round) {
    float outer[16], part[16], want[16];
    for (int n = 0; n < 16; ++n) {
      const int low = acc.outer.emin - acc.outer.man_bits - 3;
      const float x =
          source.once_in(20) ? special(source) : source.number(std::max(low, -149), top);
      outer[n] = static_cast<float>(lpk::round_to<double>(x, acc.outer, Rounding::kNearestEven, 0));
      // Near the outer sum, near a tie of it, or anywhere.
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
    const std::vector<float> before(outer, outer + 16);
    rule.add(outer, part);
    for (int n = 0; n < 16; ++n)
      CHECK_SAME(
          lpk::canonical_float(outer[n]), want[n],
          text("%s: %s + %s", format.name, shown(before[n]).c_str(), shown(part[n]).c_str()));
  }
}

// Integers of some bits, scaled: sums of chunks are exact in float32.
CudaSums::Values integers(int most, int exponent) {
  return [=](Source& source) {
    return std::ldexp(static_cast<float>(source.between(-most, most)), exponent);
  };
}

struct Operands {
  CudaSums::Values left, right;
  Tier tier;
};

std::vector<Operands> all_operands() {
  return {{integers(15, -2), integers(9, 1), Tier::kTensorHalf},
          {integers(3, -10), integers(3, -12), Tier::kTensorHalf},
          {integers(2, 13), integers(15, 3), Tier::kTensorHalf},
          {integers(15, 40), integers(15, -44), Tier::kTensorBfloat16},
          {integers(4095, 0), integers(7, 0), Tier::kNative}};
}

void check_products() {
  std::map<Tier, int64_t> kept;
  int64_t inside = 0, all = 0;
  Source source(31);
  const FormatInts saturating = float_ints(5, 3, {Specials::kIeee, Overflow::kSaturate});
  const FormatInts e4m3fn = float_ints(4, 3, {Specials::kFn, Overflow::kNan});
  const AccumulatorSpec native =
      AccumulatorSpec{"native", float_ints(8, 23)}.ordered(lpk::Order::kNative);
  for (const FormatInts& outer : {float_ints(6, 9), float_ints(5, 10), float_ints(8, 7),
                                  float_ints(8, 23), saturating, e4m3fn, float_ints(8, 21)}) {
    for (const int64_t chunk : {64, 5, 16, 40}) {
      AccumulatorSpec spec = native.chunked(chunk, outer);
      spec.name =
          text("native chunks of %d, outer e%dm%d", int(chunk), int(outer[1]), int(outer[2]));
      for (const Operands& data : all_operands()) {
        const bool gathers = source.once_in(2);
        const CudaProblem p = gathers ? CudaProblem{2, 5, 3, 70, true, source.once_in(2)}
                                      : CudaProblem{1, 9, 7, 150, false, source.once_in(2)};
        CudaSums sums(p, spec, data.left, data.right, source);
        inside += lpk::cuda::plan_for(sums.job).inside;
        const Ran ran = run_product(&sums.job);
        CHECK(ran.tier == data.tier && !ran.redone);
        ++kept[ran.tier];
        ++all;
        sums.check(text("tier %d,", static_cast<int>(ran.tier)));
      }
    }
  }
  const Operands data = all_operands()[0];
  for (const bool gathers : {false, true}) {
    CudaSums sums({2, 140, 131, 50, gathers, true}, native.chunked(24, float_ints(6, 9)), data.left,
                  data.right, source);
    run_product(&sums.job);
    sums.check("several tiles,");
  }
  CudaSums nothing({1, 2, 3, 0, false, true}, native.chunked(24), data.left, data.right, source);
  run_product(&nothing.job);
  nothing.check("no products,");
  CHECK(inside > all / 5 && inside < all / 2);
  CHECK(kept[Tier::kTensorHalf] > 0 && kept[Tier::kTensorBfloat16] > 0);
}

}  // namespace

void test_cuda_tensor() {
  check_tensor_map();
  std::map<lpk::cuda::OuterWay, int64_t> ways;
  for (const NamedFormat& format : outer_formats()) check_outer_rule(format, &ways);
  CHECK(ways.size() == 4);
  check_products();
}

}  // namespace lpk_test
