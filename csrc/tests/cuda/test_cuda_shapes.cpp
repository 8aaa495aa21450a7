// Tiles of every shape on the host, of tiers that seldom have them (job.h's other_shapes), against
// plain loops: sums as a whole, split and split in passes, of packed operands and behind tables
// with absent taps.
#include <iterator>
#include <set>
#include <tuple>

#include "cuda/product/cut.h"
#include "cuda_block.h"
#include "cuda_run.h"
#include "tests/check.h"
#include "tests/groups.h"

namespace lpk_test {
namespace {

CudaSums::Values zeros_in(CudaSums::Values plain) {
  return [plain](Source& source) {
    if (!source.once_in(2)) return plain(source);
    return source.once_in(2) ? -0.0f : 0.0f;
  };
}

// Values whose sums take the tier with this format.
struct Asked {
  Tier tier;
  FormatInts fmt;
  bool fast_doubles;
  CudaSums::Values values;
};

std::vector<Asked> tiers() {
  return {
      {Tier::kHardwareFloat, float_ints(8, 23), true, numbers(23, -3, 1)},
      {Tier::kTwoStepOdd, float_ints(8, 10), false, numbers(23, -3, 1)},
      {Tier::kSplitOdd, float_ints(8, 14), false, numbers(23, -3, 1)},
      {Tier::kFloorOdd, float_ints(6, 9), false, numbers(23, -3, 1)},
      {Tier::kDoubleSplit, float_ints(8, 14), true, numbers(20, -3, 1)},
      {Tier::kDoubleSplit, float_ints(8, 22), true, numbers(20, -3, 1)},
      {Tier::kDoubleFloor, float_ints(6, 9), true, numbers(20, -3, 1)},
  };
}

// Which tile made a product, and whether it was split.
using Made = std::tuple<Tier, int, int, bool>;

class Grid {
 public:
  // The shapes of the outputs ask for tiles of the same shapes.
  void run(const Asked& asked, int m, int n) {
    const FormatInts fp32 = float_ints(8, 23), e6m9 = float_ints(6, 9), bf16 = float_ints(8, 7);
    const auto plain = asked.values;
    // Processors and products of a sum. A sum of one chunk cannot be split.
    for (const auto& [processors, k] : {std::pair{1, 4}, {1, 17}, {2, 12}, {4, 19}, {4, 20}}) {
      for (const bool gathers : {false, true}) {
        const FormatInts outer = source_.once_in(2) ? e6m9 : source_.once_in(2) ? fp32 : bf16;
        const bool bias = source_.once_in(2);
        const auto others = source_.once_in(2) ? zeros_in(plain) : specials_in(plain);
        for (const auto& values : {plain, others}) {
          const AccumulatorSpec spec{"asked", asked.fmt};
          CudaSums sums({1, m, n, k, gathers, bias}, spec.chunked(5, outer), values, plain,
                        source_);
          sums.job.fast_doubles = asked.fast_doubles;
          sums.job.processors = processors;
          // These sums of chunks do not all fit: there are two passes.
          sums.job.most_parts = k == 19 ? 2 * m * n : lpk::cuda::kMostParts;
          const Ran ran = run_product(&sums.job);
          const bool split = ran.cut.splits > 1;
          if (!ran.redone) kept_.insert({ran.tier, ran.cut.rows, ran.cut.cols, split});
          sums.check(text("tier %d, %d x %d tiles,", static_cast<int>(ran.tier), ran.cut.rows,
                          ran.cut.cols));
        }
      }
    }
  }

  // Every tile made sums, split and not split, that were not all done again.
  void check_kept(Tier tier) const {
    for (const lpk::cuda::TileShape& shape : lpk::cuda::kFloatShapes) {
      for (const bool split : {false, true}) {
        const bool found = kept_.count({tier, shape.rows, shape.cols, split}) == 1;
        if (!found) {
          std::printf("tier %d, %d x %d, split %d: kept nothing\n", static_cast<int>(tier),
                      shape.rows, shape.cols, split);
        }
        CHECK(found);
      }
    }
  }

 private:
  Source source_{2027};
  std::set<Made> kept_;
};

}  // namespace

void test_cuda_shapes() {
  Grid grid;
  for (const Asked& asked : tiers()) {
    for (const auto& [m, n] : kSizesOfShapes) grid.run(asked, m, n);
    grid.check_kept(asked.tier);
  }
}

}  // namespace lpk_test
