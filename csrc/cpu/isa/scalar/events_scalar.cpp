#include "cpu/sums/events/events_kernel.h"

namespace lpk {

const EventKernels kScalarEvents = event_kernels<Vec<1>>();

}  // namespace lpk
