#include "cpu/sums/events/events_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

const EventKernels kEvents = event_kernels<DoubleVector>();

}  // namespace lpk::LPK_ISA
