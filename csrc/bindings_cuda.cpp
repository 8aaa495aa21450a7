// pybind11 entry points of csrc/cuda: device pointers, sizes, strides and packed specs in, nothing
// out. The GIL is released.
#include "bindings_cuda.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/format.h"
#include "cuda/elementwise/quantize.h"

namespace lpk {
namespace {

cuda::Views views_from(const Ints& sizes, const Ints& x_strides, const Ints& out_strides) {
  const size_t dims = sizes.size();
  if (dims > static_cast<size_t>(cuda::kMaxDims) || x_strides.size() != dims ||
      out_strides.size() != dims) {
    throw std::invalid_argument("cuda_quantize: sizes and strides must agree and have at most " +
                                std::to_string(cuda::kMaxDims) + " entries");
  }
  cuda::Views views{};
  views.dims = static_cast<int32_t>(dims);
  views.count = 1;
  for (size_t d = 0; d < dims; ++d) {
    views.sizes[d] = sizes[d];
    views.x_strides[d] = x_strides[d];
    views.out_strides[d] = out_strides[d];
    views.count *= sizes[d];
  }
  return views;
}

void cuda_quantize(uintptr_t x, int x_type, uintptr_t out, int out_type, const Ints& sizes,
                   const Ints& x_strides, const Ints& out_strides, const Ints& quantizer,
                   uint64_t seed, uintptr_t device_seed, uint64_t role, uint32_t site,
                   uintptr_t stream) {
  if (quantizer.size() < static_cast<size_t>(kFormatInts + 3)) {
    throw std::invalid_argument("cuda_quantize: a quantizer has at least 11 integers, got " +
                                std::to_string(quantizer.size()));
  }
  const cuda::Draws draws{seed, reinterpret_cast<const int64_t*>(device_seed), role, site};
  cuda::quantize(reinterpret_cast<const void*>(x), static_cast<cuda::ElementType>(x_type),
                 reinterpret_cast<void*>(out), static_cast<cuda::ElementType>(out_type),
                 views_from(sizes, x_strides, out_strides), quantizer.data(), draws,
                 reinterpret_cast<void*>(stream));
}

}  // namespace

void register_cuda(pybind11::module_& module) {
  namespace py = pybind11;
  module.attr("has_cuda") = true;
  module.def("cuda_quantize", &cuda_quantize, py::call_guard<py::gil_scoped_release>(),
             py::arg("x"), py::arg("x_type"), py::arg("out"), py::arg("out_type"), py::arg("sizes"),
             py::arg("x_strides"), py::arg("out_strides"), py::arg("quantizer"), py::arg("seed"),
             py::arg("device_seed"), py::arg("role"), py::arg("site"), py::arg("stream"));
  register_cuda_products(module);
}

}  // namespace lpk
