#include "events_kernel.h"

namespace lpk {

EventCounts events_scalar(const EventBlock& block) { return count_events<Vec<1>>(block); }

}  // namespace lpk
