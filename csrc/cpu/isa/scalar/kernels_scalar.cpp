#include "cpu/isa/kernels.h"
#include "cpu/sums/exact/double_kernel.h"

namespace lpk {
namespace {

void accumulate(const Tile& t) {
  run_double_tile<Vec<1>>(t.marked(), accumulator_from(t.accumulator));
  count_products(Tier::kDouble, t.rows * t.lanes * t.depth);
}

}  // namespace

const Kernels kScalarKernels =
    kernels_of<Bits32<1>, Vec<1>>("scalar", accumulate, accumulate_ordered_scalar,
                                  {&kScalarCounts, &kScalarBlocks, &kScalarHadamard, &kScalarEvents,
                                   update_piece_scalar, grouped_row_scalar, nullptr, nullptr});

}  // namespace lpk
