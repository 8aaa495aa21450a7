// out[i] = round_to(x[i], fmt, rounding, draw_i) as in quantize.cu, with counts of what happens.
//
// Thread t of the grid handles elements t, t + T, t + 2T, ... in row-major order, where T is the
// number of all threads. Counts are sums of integers, so no order of the threads changes them. The
// kernel tells types apart as it runs. Affine and Block formats are not supported here;
// count_scaled.cu has them.
#include <stdexcept>

#include "count_tally.h"
#include "views.h"

namespace lpk::cuda {
namespace {

template <bool kHistogram>
__global__ void count_elements_kernel(Elements x, Written out, const __grid_constant__ Views views,
                                      const __grid_constant__ Format fmt,
                                      const __grid_constant__ ElementRounding how,
                                      int64_t* counts) {
  __shared__ uint32_t bins[kHistogram ? kBins : 1];
  BlockTally<kHistogram> tally(bins);
  const uint64_t seed = how.seed();
  for (int64_t i = grid_thread(); i < views.count; i += grid_threads()) {
    const Offsets at = offsets_of(i, views);
    const double value = moderated(x(at.x));
    const double threshold = how.threshold(seed, i);
    const double r = round_to<double>(value, fmt, how.rounding, threshold);
    tally.add(value, overflows(value, fmt, how.rounding, threshold), r);
    out(at.out, r);
  }
  tally.finish(counts);
}

}  // namespace

void count_elements(const void* x, ElementType x_type, void* out, ElementType out_type,
                    const Views& views, const int64_t* quantizer, const Draws& draws,
                    const Counting& counting, void* stream) {
  const auto kind = static_cast<Kind>(quantizer[0]);
  if (kind != Kind::kFloat && kind != Kind::kFixed)
    throw std::invalid_argument("count: this kernel takes float and fixed formats only");
  if (counting.counts == nullptr) throw std::invalid_argument("count: there is nothing to add to");
  if (views.count == 0) return;
  const auto run = counting.histogram ? count_elements_kernel<true> : count_elements_kernel<false>;
  run<<<element_blocks(views.count), kElementThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      {x, x_type}, {out, out_type}, views, number_format(quantizer),
      ElementRounding(quantizer + kFormatInts, draws), counting.counts);
  check_launch("count");
}

}  // namespace lpk::cuda
