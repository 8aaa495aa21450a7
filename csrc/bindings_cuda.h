// The CUDA half of the module, in a file of its own so that the module builds without it.
#pragma once

#include <pybind11/pybind11.h>

namespace lpk {

void register_cuda(pybind11::module_& module);

}  // namespace lpk
