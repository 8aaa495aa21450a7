#include "cpu/sums/events/events_kernel.h"

namespace lpk {

const EventKernels kAvx2Events = event_kernels<Vec<4>>();

}  // namespace lpk
