// Sums in half precision and bfloat16 by the processor's own arithmetic and conversions.
#include "cuda/rules/convert_rule.h"
#include "cuda/tiles/half_tile.h"
#include "fast.h"

namespace lpk::cuda {
namespace {

template <bool kBfloat16>
struct Half {
  template <bool kTables, bool kChunked>
  using Tile = HalfTile<kBfloat16, kTables, kChunked>;
};

}  // namespace

void launch_half(const Job& job, cudaStream_t stream) {
  if (native_format(job.acc.fmt) == Native::kHalf) {
    launch_layouts<Half<false>, Tier::kNative>(job, stream);
    launch_rule<ConvertRule, Tier::kConverted>(job, stream);
  } else {
    launch_layouts<Half<true>, Tier::kNative>(job, stream);
  }
}

}  // namespace lpk::cuda
