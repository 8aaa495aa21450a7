// Work blocks of products whose scales enter the outer sum.
#pragma once

#include "work_blocks.h"

namespace lpk {

// As run_block of gemm.cpp, for an accumulator with chunk="scale".
void run_scaled_block(const WorkBlock& block, const Kernels& kernel, const Arithmetic& arithmetic,
                      uint64_t seed, uint64_t call);

}  // namespace lpk
