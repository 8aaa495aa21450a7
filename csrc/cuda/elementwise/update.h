// An optimizer's step of parameters on a CUDA device. No CUDA type crosses this header.
#pragma once

#include "common/update_element.h"

namespace lpk::cuda {

// Device pointers in args; a launch for each parameter on `stream`. Steps are not counted: they are
// read by every thread of a parameter. Throws std::runtime_error for a CUDA error.
void update(const UpdateArgs& args, void* stream);

}  // namespace lpk::cuda
