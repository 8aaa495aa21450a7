#include "cpu/sums/events/events_kernel.h"

namespace lpk {

const EventKernels kNeonEvents = event_kernels<Vec<2>>();

}  // namespace lpk
