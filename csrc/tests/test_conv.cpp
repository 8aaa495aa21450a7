// The three passes of convolutions against plain loops over taps.
#include "conv_check.h"
#include "groups.h"

namespace lpk_test {
namespace {

const Conv kConvs[] = {
    {"1d", 2, 1, 3, 4, {{1, 1, 9}}, {{1, 1, 3}}, {{1, 1, 1}}, {{0, 0, 1}}, {{1, 1, 1}}},
    {"3x3", 2, 1, 3, 5, {{1, 6, 5}}, {{1, 3, 3}}, {{1, 1, 1}}, {{0, 1, 1}}, {{1, 1, 1}}},
    {"1x1 stride 2", 1, 1, 5, 7, {{1, 5, 6}}, {{1, 1, 1}}, {{1, 2, 2}}, {{0, 0, 0}}, {{1, 1, 1}}},
    {"stride", 1, 1, 2, 5, {{1, 7, 8}}, {{1, 3, 2}}, {{1, 2, 3}}, {{0, 1, 0}}, {{1, 1, 1}}},
    {"dilation", 1, 1, 2, 3, {{1, 9, 8}}, {{1, 3, 3}}, {{1, 1, 2}}, {{0, 2, 1}}, {{1, 2, 3}}},
    {"groups", 2, 2, 3, 2, {{1, 5, 5}}, {{1, 3, 3}}, {{1, 1, 1}}, {{0, 1, 1}}, {{1, 1, 1}}},
    {"depthwise", 1, 4, 1, 2, {{1, 6, 6}}, {{1, 3, 3}}, {{1, 2, 2}}, {{0, 1, 1}}, {{1, 1, 1}}},
    {"depthwise many",
     2,
     18,
     1,
     1,
     {{1, 9, 11}},
     {{1, 3, 3}},
     {{1, 1, 1}},
     {{0, 1, 1}},
     {{1, 1, 1}}},
    {"small groups", 1, 7, 2, 3, {{1, 6, 9}}, {{1, 3, 2}}, {{1, 2, 2}}, {{0, 1, 0}}, {{1, 1, 2}}},
    {"depthwise 1d", 1, 17, 1, 1, {{1, 1, 40}}, {{1, 1, 5}}, {{1, 1, 3}}, {{0, 0, 4}}, {{1, 1, 2}}},
    {"depthwise 3d", 1, 5, 1, 2, {{3, 4, 5}}, {{2, 3, 3}}, {{2, 1, 2}}, {{1, 1, 1}}, {{1, 1, 1}}},
    {"few phases", 1, 1, 35, 5, {{1, 5, 7}}, {{1, 1, 3}}, {{1, 3, 4}}, {{0, 0, 1}}, {{1, 1, 1}}},
    {"few channels",
     1,
     1,
     2,
     14,
     {{1, 17, 19}},
     {{1, 5, 5}},
     {{1, 2, 2}},
     {{0, 2, 2}},
     {{1, 1, 1}}},
    {"beyond", 1, 1, 2, 2, {{1, 2, 2}}, {{1, 1, 2}}, {{1, 1, 1}}, {{0, 2, 3}}, {{1, 1, 1}}},
    {"unused", 1, 1, 2, 2, {{1, 8, 7}}, {{1, 2, 2}}, {{1, 3, 3}}, {{0, 0, 0}}, {{1, 1, 1}}},
    {"wide", 1, 1, 2, 3, {{1, 3, 37}}, {{1, 3, 3}}, {{1, 1, 1}}, {{0, 1, 1}}, {{1, 1, 1}}},
    {"wide stride 2",
     2,
     1,
     2,
     17,
     {{1, 3, 41}},
     {{1, 3, 3}},
     {{1, 2, 2}},
     {{0, 1, 1}},
     {{1, 1, 1}}},
    {"no batch", 0, 1, 2, 2, {{1, 4, 4}}, {{1, 3, 3}}, {{1, 1, 1}}, {{0, 1, 1}}, {{1, 1, 1}}},
    {"3d", 1, 1, 2, 3, {{4, 3, 5}}, {{2, 3, 2}}, {{1, 2, 1}}, {{1, 1, 0}}, {{1, 1, 2}}},
    {"deep", 1, 1, 30, 19, {{1, 4, 3}}, {{1, 3, 3}}, {{1, 1, 1}}, {{0, 1, 1}}, {{1, 1, 1}}},
    // The second block of k of dgrad begins inside a pair of positions, between two that are there.
    {"deep stride 2",
     1,
     1,
     1,
     202,
     {{1, 1, 5}},
     {{1, 1, 3}},
     {{1, 1, 2}},
     {{0, 0, 1}},
     {{1, 1, 1}}},
};

}  // namespace

void test_conv() {
  int turn = 0;
  std::vector<AccumulatorSpec> specs = accumulators();
  for (const AccumulatorSpec& spec : operand_accumulators()) specs.push_back(spec);
  for (const AccumulatorSpec& spec : specs) {
    for (const Conv& conv : kConvs) {
      // Every data set, layout and number of threads meets every convolution in turn.
      const Data data = kAllData[turn % 6];
      const int at = turn++;
      if (!taken()) continue;
      ConvCheck check(conv, spec, data, at / 2 % 2 == 0, 1 + at / 14 % 2, Source(99));
      check.fprop();
      check.dgrad();
      check.wgrad();
    }
    ++turn;
  }
}

}  // namespace lpk_test
