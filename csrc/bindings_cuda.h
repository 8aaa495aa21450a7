// The CUDA half of the module, in files of its own so that the module builds without it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace lpk {

using Ints = std::vector<int64_t>;

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

inline void check_size(const Ints& ints, size_t size, const char* what) {
  if (ints.size() == size) return;
  throw std::invalid_argument(std::string(what) + ": expected " + std::to_string(size) +
                              " integers, got " + std::to_string(ints.size()));
}

void register_cuda(pybind11::module_& module);
void register_cuda_products(pybind11::module_& module);

}  // namespace lpk
