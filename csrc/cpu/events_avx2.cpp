#include "events_kernel.h"

namespace lpk {

EventCounts events_avx2(const EventBlock& block) { return count_events<Vec<4>>(block); }

}  // namespace lpk
