#include "cpu/sums/events/events_kernel.h"

namespace lpk {

const EventKernels kAvx512Events = event_kernels<Vec<8>>();

}  // namespace lpk
