// out = round(x / 2^X) 2^X, with X of the element's block (block_map.h). A block is for a warp
// where its elements are neighbours, and for a thread elsewhere. Groups of lanes take blocks g, g +
// G, ..., where G is the number of all groups.
#include "block_extent.h"
#include "elements.h"

namespace lpk::cuda {
namespace {

template <int kLanes>
__global__ void quantize_blocks_kernel(const __grid_constant__ BlockShape shape, Elements x,
                                       float* out, const __grid_constant__ BlockElement element,
                                       const __grid_constant__ ElementRounding rule) {
  const uint64_t seed = rule.seed();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto threshold = [&](int64_t index) { return rule.threshold(seed, index); };
  for (int64_t i = grid_thread() / kLanes; i < shape.count(); i += grid_threads() / kLanes) {
    const BlockSpan span = shape.block(i);
    const Extent extent = whole_extent<kLanes>(extent_of(span, lane, kLanes, x));
    round_block(span, lane, kLanes, extent, element, rule.rounding, x, threshold, out);
  }
}

}  // namespace

void quantize_blocks(const ScaledArgs& args, void* stream) {
  const int64_t* format = args.quantizer;
  const BlockShape shape(args.sizes, format[1], 0);
  if (shape.count() == 0) return;
  const BlockElement element(format + kFormatInts);
  const ElementRounding rule(format + 2 * kFormatInts, args.draws);
  const Elements x{args.x, args.x_type};
  const auto queue = static_cast<cudaStream_t>(stream);
  if (shape.wide()) {
    quantize_blocks_kernel<32><<<element_blocks(32 * shape.count()), kElementThreads, 0, queue>>>(
        shape, x, args.out, element, rule);
  } else {
    quantize_blocks_kernel<1><<<element_blocks(shape.count()), kElementThreads, 0, queue>>>(
        shape, x, args.out, element, rule);
  }
  check_launch("quantize to a block format");
}

}  // namespace lpk::cuda
