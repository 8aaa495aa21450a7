#include "cpu/sums/events/events_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

EventCounts count_events(const EventBlock& block) {
  return count_block_events<DoubleVector>(block);
}

}  // namespace lpk::LPK_ISA
