// Native chunks of csrc/cuda on the host: the tile's index maps, the additions between chunks, and
// whole products whose chunks are exact in float32 in any order.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "cuda/rules/outer_rule.h"
#include "cuda/tiles/tensor_tile.h"
#include "cuda_block.h"
#include "cuda_run.h"
#include "tests/check.h"
#include "tests/groups.h"

namespace lpk_test {
namespace {

using lpk::cuda::kLaneChunk;
using lpk::cuda::kTensorSteps;

// Each half of a stage has its own place, is copied once and looked up once.
template <class Side>
void check_tensor_stage(int threads) {
  std::set<int> places, copied, looked_up;
  for (int step = 0; step < kTensorSteps; ++step) {
    for (int lane = 0; lane < Side::kLanes; ++lane) places.insert(Side::half_at(step, lane));
  }
  for (int t = 0; t < threads; ++t) {
    for (int e = 0; e < Side::kCopied; ++e) {
      const int at = Side::half_at(Side::copied_step(t, e), Side::copied_lane(t));
      for (int n = 0; n < kLaneChunk; ++n) copied.insert(at + n);
      CHECK(at == Side::half_at(Side::copied_step(t, 0), Side::copied_lane(t)) +
                      Side::kCopiedApart * Side::kLanes * e);
    }
    for (int e = 0; e < Side::kFetched; ++e) {
      for (int n = 0; n < 2; ++n)
        looked_up.insert(Side::half_at(Side::fetched_step(t, e), Side::fetched_lane(t) + n));
    }
  }
  const int halves = kTensorSteps * Side::kLanes;
  CHECK(static_cast<int>(places.size()) == halves && *places.rbegin() == halves - 1);
  CHECK(copied == places && looked_up == places);
}

// Every output is some thread's, and the threads name the rows of their own warps' fragments.
template <int kRows, int kCols>
void check_tensor_map() {
  using Map = lpk::cuda::TensorMap<kRows, kCols>;
  using Left = typename Map::Left;
  using Right = typename Map::Right;
  std::set<std::pair<int, int>> outputs;
  for (int t = 0; t < Map::kThreads; ++t) {
    for (int n = 0; n < Map::kOutputs; ++n) outputs.insert({Map::row(t, n), Map::col(t, n)});
  }
  CHECK(static_cast<int>(outputs.size()) == kRows * kCols && outputs.rbegin()->first == kRows - 1);
  check_tensor_stage<Left>(Map::kThreads);
  check_tensor_stage<Right>(Map::kThreads);
  for (int t = 0; t < Map::kThreads; ++t) {
    for (int h = 0; h < 2; ++h) {
      const int left_step = 16 * h + t / 16 % 2 * 8 + t % 8;
      const int right_step = 16 * h + t / 8 % 2 * 8 + t % 8;
      for (int i = 0; i < Map::kRows; ++i) {
        const int lane = Map::first_row(t) + 16 * i + t / 8 % 2 * 8;
        CHECK(Left::row_at(Map::left_start(t), i, h) == Left::half_at(left_step, lane));
      }
      for (int j = 0; j < Map::kCols / 2; ++j) {
        const int lane = Map::first_col(t) + 16 * j + t / 16 % 2 * 8;
        CHECK(Right::row_at(Map::right_start(t), j, h) == Right::half_at(right_step, lane));
      }
    }
  }
}

// Stages of operands without tables are the same as those of operands with tables.
void check_copied_stages() {
  for (const int64_t length : {0, 1, 31, 32, 33, 64, 200}) {
    for (const int64_t chunk : {1, 16, 32, 40, 64, 300}) {
      lpk::cuda::Job job{};
      job.sums.k = length;
      job.acc.chunk = chunk;
      lpk::cuda::begin_chunks(&job);
      lpk::cuda::CopiedStages at(job, {{}, 0, 0, 0, job.chunks, 0});
      for (lpk::cuda::StagesOf<32> want(job); want.left(); want = want.following()) {
        CHECK(at.left() && at.first() == want.first() && at.count() == want.count());
        CHECK(at.chunk() == want.chunk() && at.closes() == want.closes());
        at = at.following();
      }
      CHECK(!at.left());
    }
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
  const AccumulatorSpec spec = AccumulatorSpec{"fp32", float_ints(8, 23)}
                                   .ordered(lpk::Order::kNative)
                                   .chunked(4, format.ints);
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

// Integers of some bits, scaled: sums of chunks are exact in float32.
CudaSums::Values integers(int most, int exponent) {
  return [=](Source& source) {
    return std::ldexp(static_cast<float>(source.between(-most, most)), exponent);
  };
}

// Powers of two, far apart: a chunk keeps few of them, so that its sum is exact all the same.
CudaSums::Values spread(int low, int high) {
  return [=](Source& source) {
    return source.once_in(3) ? std::ldexp(1.0f, source.between(low, high)) : 0.0f;
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
          {spread(-12, 0), spread(-10, 0), Tier::kTensorHalf},
          {integers(4095, 0), integers(7, 0), Tier::kHardwareFloat}};
}

void check_products() {
  std::map<Tier, int64_t> kept;
  std::map<lpk::cuda::Closing, int64_t> closings;
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
        const lpk::cuda::Closing closing = lpk::cuda::plan_for(sums.job).closing;
        const Ran ran = run_product(&sums.job);
        CHECK(ran.tier == data.tier && !ran.redone);
        ++kept[ran.tier];
        if (ran.tier != Tier::kHardwareFloat) ++closings[closing];
        sums.check(text("tier %d,", static_cast<int>(ran.tier)));
      }
    }
  }
  const Operands data = all_operands()[0];
  // Tiles of every shape, several of each.
  std::set<std::pair<int, int>> tiles;
  for (const auto& [m, n] : {std::pair{140, 200}, {140, 61}, {61, 140}}) {
    for (const bool gathers : {false, true}) {
      CudaSums sums({2, m, n, 50, gathers, true}, native.chunked(24, float_ints(6, 9)), data.left,
                    data.right, source);
      sums.job.processors = source.once_in(2) ? 1 : 132;
      const Ran ran = run_product(&sums.job);
      tiles.insert({ran.cut.rows, ran.cut.cols});
      sums.check("several tiles,");
    }
  }
  CHECK(tiles.size() == 3);
  CudaSums nothing({1, 2, 3, 0, false, true}, native.chunked(24), data.left, data.right, source);
  run_product(&nothing.job);
  nothing.check("no products,");
  CHECK(closings.size() == 4);
  CHECK(kept[Tier::kTensorHalf] > 0 && kept[Tier::kTensorBfloat16] > 0);
}

}  // namespace

void test_cuda_tensor() {
  check_tensor_map<128, 128>();
  check_tensor_map<128, 64>();
  check_tensor_map<64, 128>();
  check_copied_stages();
  std::map<lpk::cuda::OuterWay, int64_t> ways;
  for (const NamedFormat& format : outer_formats()) check_outer_rule(format, &ways);
  CHECK(ways.size() == 4);
  check_products();
}

}  // namespace lpk_test
