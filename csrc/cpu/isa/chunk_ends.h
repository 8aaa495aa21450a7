// Ends of chunks: in double lanes, by a function that all units share, and in float32 lanes where
// instructions round as they are told.

namespace lpk::LPK_ISA {

// In double.cpp: outer <- round(outer + inner), inner <- +0 for some rows of one panel.
void close_in_double(const Tile& t, const Accumulator& acc, int64_t row, int64_t rows, int64_t lane,
                     uint64_t chunk);

}  // namespace lpk::LPK_ISA

#if defined(__AVX512F__)
#include "cpu/sums/exact/float_chunks.h"
#endif
