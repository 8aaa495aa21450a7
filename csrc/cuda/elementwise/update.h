// An optimizer's step of parameters on a CUDA device. No CUDA type crosses this header.
#pragma once

#include "common/update_element.h"

namespace lpk::cuda {

// The pointers in args are device pointers, and each parameter has a launch on `stream`. Steps are
// not counted here, because every thread of a parameter reads their count. Throws
// std::runtime_error for a CUDA error.
void update(const UpdateArgs& args, void* stream);

}  // namespace lpk::cuda
