#include "events_kernel.h"

namespace lpk {

EventCounts events_avx512(const EventBlock& block) { return count_events<Vec<8>>(block); }

}  // namespace lpk
