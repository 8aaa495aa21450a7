// LPK_CHECK(condition, message): refuses arguments by which a kernel would read or write out of
// bounds. pybind11 turns the exception into ValueError.
#pragma once

#include <stdexcept>
#include <string>

#define LPK_CHECK(condition, message)                                                      \
  do {                                                                                     \
    if (!(condition)) throw std::invalid_argument(std::string("lpkernels: ") + (message)); \
  } while (0)
