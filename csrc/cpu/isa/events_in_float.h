// Events of sums in float32 lanes, where instructions round as they are told.

#if defined(__AVX512F__)
#include "cpu/sums/events/float_events.h"
#endif
