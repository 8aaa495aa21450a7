// What a plan says: the kernel that a product takes, and how its chunks join outer sums.
#pragma once

#include <cstdint>

namespace lpk::cuda {

enum class Tier : int32_t {
  kExact = 0,       // none of the others: the exact kernel
  kTwoStep,         // nearest_even by splitting in two steps: short formats
  kTwoStepWatched,  // sums that leave the certificate's bound are seen, their tiles done again
  kTwoStepClipped,  // saturating formats: sums stop at max
  kTwoStepOdd,      // sums made odd before; watched
  kSplit,           // by Veltkamp's splitting, in three steps
  kSplitWatched,
  kSplitClipped,
  kSplitOdd,
  kFloor,  // with the subnormals' floor
  kFloorWatched,
  kFloorClipped,
  kFloorOdd,
  kDoubleSplit,  // in double; watched
  kDoubleFloor,
  kTruncated,      // toward_zero; watched
  kStochastic,     // watched
  kConverted,      // half precision by conversions from float32
  kHardwareFloat,  // float32 by the processor's own arithmetic
};

// How chunks join outer sums. The first four ways are in float32. kAny: nothing is known of the
// sums. kFloorless: no sum that is not zero lies below the format's last place. kInside: no sum
// overflows either. kExact: all additions are exact in float32, too. The last way is in double,
// where outer_rule.h cannot replace it.
enum class Closing : int32_t { kAny, kFloorless, kInside, kExact, kInDouble };

struct Plan {
  Tier tier;
  int32_t shift;  // the left operand is scaled by 2^shift
  // Whether an absent tap, which is a zero here, may have changed sums that may be -0 or NaN. If
  // so, outputs that are zero or NaN must be done again.
  bool signs;
  Closing closing = Closing::kAny;
};

}  // namespace lpk::cuda
