// Certified sums toward zero, and float32's own.
#include "certified.h"

namespace lpk::cuda {
namespace {

template <Rounding kMode>
struct Hardware {
  template <bool kTables, bool kChunked>
  using Of =
      Tiers<TierTile<Tier::kHardwareFloat, CertifiedTile<HardwareRule<kMode>, kTables, kChunked>>>;
};

template <bool kTables, bool kChunked>
using Truncated =
    Tiers<TierTile<Tier::kTruncated, CertifiedTile<TruncationRule, kTables, kChunked>>>;

}  // namespace

void launch_truncated(const Job& job, cudaStream_t stream) {
  launch_layout<Truncated>(job, stream);
}

void launch_float32(const Job& job, cudaStream_t stream) {
  switch (job.acc.rounding) {
    case Rounding::kTowardZero:
      return launch_rare_layout<Hardware<Rounding::kTowardZero>::Of>(job, stream);
    case Rounding::kTowardPositive:
      return launch_rare_layout<Hardware<Rounding::kTowardPositive>::Of>(job, stream);
    case Rounding::kTowardNegative:
      return launch_rare_layout<Hardware<Rounding::kTowardNegative>::Of>(job, stream);
    default:
      return launch_layout<Hardware<Rounding::kNearestEven>::Of>(job, stream);
  }
}

}  // namespace lpk::cuda
