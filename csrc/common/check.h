// LPK_CHECK(condition, message): what would read or write out of bounds is refused. pybind11 turns
// it into ValueError.
#pragma once

#include <stdexcept>
#include <string>

#define LPK_CHECK(condition, message)                                                      \
  do {                                                                                     \
    if (!(condition)) throw std::invalid_argument(std::string("lpkernels: ") + (message)); \
  } while (0)
