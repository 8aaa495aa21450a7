// The entry points of updates, bound in files of their own.
#pragma once

#include <pybind11/pybind11.h>

namespace lpk {

void register_update(pybind11::module_& module);

}  // namespace lpk
