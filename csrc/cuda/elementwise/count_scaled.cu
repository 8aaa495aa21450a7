// Block and affine formats as in quantize_blocks.cu and quantize_affine.cu, with counts of what
// happens; and the lines of affine formats between ends that are given.
#include <stdexcept>

#include "block_extent.h"
#include "count_tally.h"
#include "elements.h"

namespace lpk::cuda {
namespace {

// Lanes and groups take blocks as in quantize_blocks.cu.
template <int kLanes, bool kHistogram>
__global__ void count_blocks_kernel(const __grid_constant__ BlockShape shape, Elements x,
                                    float* out, const __grid_constant__ BlockElement element,
                                    const __grid_constant__ ElementRounding rule, int64_t* counts) {
  __shared__ uint32_t bins[kHistogram ? kBins : 1];
  BlockTally<kHistogram> tally(bins);
  const uint64_t seed = rule.seed();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int64_t i = grid_thread() / kLanes; i < shape.count(); i += grid_threads() / kLanes) {
    const BlockSpan span = shape.block(i);
    const Extent extent = whole_extent<kLanes>(extent_of(span, lane, kLanes, x));
    each_rounded(
        span, lane, kLanes, extent, element, rule.rounding, x,
        [&](int64_t index) { return rule.threshold(seed, index); },
        [&](int64_t index, double value, double scaled, double threshold, double rounded,
            double up) {
          tally.add(value, overflows(scaled, element.format, rule.rounding, threshold),
                    rounded * up);
          if (out != nullptr) out[index] = canonical_float(rounded * up);
        });
  }
  tally.finish(counts);
}

__global__ void limits_kernel(const double* limits, AffineLine<double>* lines, int64_t slices,
                              const __grid_constant__ AffineCodes codes) {
  for (int64_t s = grid_thread(); s < slices; s += grid_threads())
    lines[s] = affine_line(limits[s], limits[slices + s], codes);
}

template <bool kHistogram>
__global__ void count_codes_kernel(const __grid_constant__ SlicePieces pieces, int64_t count,
                                   Elements x, const AffineLine<double>* lines,
                                   const double* limits, float* out,
                                   const __grid_constant__ AffineCodes codes,
                                   const __grid_constant__ Format integers,
                                   const __grid_constant__ ElementRounding rule, int64_t* counts) {
  __shared__ uint32_t bins[kHistogram ? kBins : 1];
  BlockTally<kHistogram> tally(bins);
  const uint64_t seed = rule.seed();
  for (int64_t i = grid_thread(); i < count; i += grid_threads()) {
    const int64_t slice = pieces.slice_of(i);
    const double value = x(i);
    const float r = affine_rounded(value, lines[slice], codes, integers, rule.rounding,
                                   rule.threshold(seed, i));
    // Nothing lies outside of the ends of its own slice.
    const bool over = limits != nullptr &&
                      outside(value, limits[slice], limits[pieces.sizes.length + slice], codes);
    tally.add(value, over, r);
    if (out != nullptr) out[i] = r;
  }
  // Where only a range was given, there are no counts to add to.
  if (counts != nullptr) tally.finish(counts);
}

template <bool kHistogram>
void launch_blocks(const ScaledArgs& args, int64_t* counts, cudaStream_t queue) {
  const BlockShape shape(args.sizes, args.quantizer[1], 0);
  if (shape.count() == 0) return;
  const BlockElement element(args.quantizer + kFormatInts);
  const ElementRounding rule(args.quantizer + 2 * kFormatInts, args.draws);
  const Elements x{args.x, args.x_type};
  if (shape.wide()) {
    count_blocks_kernel<32, kHistogram>
        <<<element_blocks(32 * shape.count()), kElementThreads, 0, queue>>>(shape, x, args.out,
                                                                            element, rule, counts);
  } else {
    count_blocks_kernel<1, kHistogram>
        <<<element_blocks(shape.count()), kElementThreads, 0, queue>>>(shape, x, args.out, element,
                                                                       rule, counts);
  }
  check_launch("count in a block format");
}

}  // namespace

void count_blocks(const ScaledArgs& args, const Counting& counting, void* stream) {
  if (counting.counts == nullptr) throw std::invalid_argument("count: there is nothing to add to");
  const auto queue = static_cast<cudaStream_t>(stream);
  counting.histogram ? launch_blocks<true>(args, counting.counts, queue)
                     : launch_blocks<false>(args, counting.counts, queue);
}

void count_affine(const ScaledArgs& args, const Counting& counting, void* stream) {
  const int64_t count = args.sizes.outer * args.sizes.length * args.sizes.inner;
  if (count == 0) return;
  const SlicePieces pieces(args.sizes);
  const int64_t slices = pieces.sizes.length;
  const AffineCodes codes(args.quantizer);
  auto* lines = reinterpret_cast<AffineLine<double>*>(args.lines);
  const auto queue = static_cast<cudaStream_t>(stream);
  if (counting.limits == nullptr) {
    affine_lines(args, stream);
  } else {
    limits_kernel<<<element_blocks(slices), kElementThreads, 0, queue>>>(counting.limits, lines,
                                                                         slices, codes);
    check_launch("the lines of an affine format");
  }
  const auto run = counting.histogram ? count_codes_kernel<true> : count_codes_kernel<false>;
  run<<<element_blocks(count), kElementThreads, 0, queue>>>(
      pieces, count, {args.x, args.x_type}, lines, counting.limits, args.out, codes,
      number_format(kAffineIntegers), ElementRounding(args.quantizer + kFormatInts, args.draws),
      counting.counts);
  check_launch("count in an affine format");
}

}  // namespace lpk::cuda
