#include "cpu/isa/kernels.h"
#include "cpu/sums/exact/double_kernel.h"

namespace lpk {
namespace {

void accumulate(const Tile& t) {
  run_double_tile<Vec<1>>(t.marked(), accumulator_from(t.accumulator));
  count_products(Tier::kDouble, t.rows * t.lanes * t.depth);
}

}  // namespace

const Kernels kScalarKernels = {"scalar",
                                accumulate,
                                accumulate_ordered_scalar,
                                add_block<Vec<1>>,
                                transpose,
                                copy_panels,
                                measure,
                                round_block<Vec<1>>,
                                round_elements<Bits32<1>>,
                                encode_words<Bits32<1>>,
                                decode_words<Bits32<1>>,
                                narrow_codes<Bits32<1>>,
                                affine_span<Vec<1>>,
                                widen_floats<Vec<1>>,
                                narrow_floats<Vec<1>>,
                                widen_range<Vec<1>>};

}  // namespace lpk
