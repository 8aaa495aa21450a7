// Certified sums toward zero, and float32's own.
#include "one_tier.h"

namespace lpk::cuda {
namespace {

template <Rounding kMode>
struct HardwareTile {
  template <bool kTables, bool kChunked>
  using Of = CertifiedTile<HardwareRule<kMode>, kTables, kChunked>;
};

template <bool kTables, bool kChunked>
using Truncated = CertifiedTile<TruncationRule, kTables, kChunked>;

}  // namespace

void launch_truncated(const Job& job, cudaStream_t stream) {
  launch_tier<Tier::kTruncated, Truncated>(job, stream);
}

void launch_float32(const Job& job, cudaStream_t stream) {
  switch (job.acc.rounding) {
    case Rounding::kTowardZero:
      return launch_tier<Tier::kHardwareFloat, HardwareTile<Rounding::kTowardZero>::Of>(job,
                                                                                        stream);
    case Rounding::kTowardPositive:
      return launch_tier<Tier::kHardwareFloat, HardwareTile<Rounding::kTowardPositive>::Of>(job,
                                                                                            stream);
    case Rounding::kTowardNegative:
      return launch_tier<Tier::kHardwareFloat, HardwareTile<Rounding::kTowardNegative>::Of>(job,
                                                                                            stream);
    default:
      return launch_tier<Tier::kHardwareFloat, HardwareTile<Rounding::kNearestEven>::Of>(job,
                                                                                         stream);
  }
}

}  // namespace lpk::cuda
