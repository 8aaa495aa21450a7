// Ends of chunks in float32 lanes, where instructions round as they are told.

#if defined(__AVX512F__)
#include "cpu/sums/exact/float_chunks.h"
#endif
