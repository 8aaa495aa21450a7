// pybind11 entry points of csrc/cuda: device pointers, sizes, strides and packed specs in, nothing
// out. The GIL is released.
#include "bindings_cuda.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings_update.h"
#include "common/format.h"
#include "cuda/elementwise/count.h"
#include "cuda/elementwise/quantize.h"
#include "cuda/elementwise/scales.h"

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

cuda::AxisSizes axis_from(const Ints& sizes) {
  check_size(sizes, 3, "sizes around an axis");
  return {sizes[0], sizes[1], sizes[2]};
}

bool is_block(const Ints& format) {
  return !format.empty() && format[0] == static_cast<int64_t>(Kind::kBlock);
}

// scratch: of affine formats, ends and lines of the slices. Points into its arguments.
cuda::ScaledArgs scaled_args(uintptr_t x, int x_type, uintptr_t out, const Ints& sizes,
                             const Ints& quantizer, uint64_t seed, uintptr_t device_seed,
                             uint64_t role, uint32_t site, const Ints& scratch) {
  check_size(quantizer, (is_block(quantizer) ? 2 : 1) * kFormatInts + 4, "a quantizer");
  check_size(scratch, 2, "scratch");
  return {pointer<const void>(x),
          static_cast<cuda::ElementType>(x_type),
          pointer<float>(out),
          axis_from(sizes),
          quantizer.data(),
          {seed, pointer<const int64_t>(device_seed), role, site},
          pointer<int64_t>(static_cast<uintptr_t>(scratch[0])),
          pointer<double>(static_cast<uintptr_t>(scratch[1]))};
}

void cuda_quantize_scaled(uintptr_t x, int x_type, uintptr_t out, const Ints& sizes,
                          const Ints& quantizer, uint64_t seed, uintptr_t device_seed,
                          uint64_t role, uint32_t site, const Ints& scratch, uintptr_t stream) {
  const cuda::ScaledArgs args =
      scaled_args(x, x_type, out, sizes, quantizer, seed, device_seed, role, site, scratch);
  const auto quantize = is_block(quantizer) ? cuda::quantize_blocks : cuda::quantize_affine;
  quantize(args, pointer<void>(stream));
}

cuda::Counting counting_from(const Ints& counting) {
  check_size(counting, 3, "counting");
  return {pointer<int64_t>(static_cast<uintptr_t>(counting[0])), counting[1] != 0,
          pointer<const double>(static_cast<uintptr_t>(counting[2]))};
}

// counting: pointers to the counts, whether there is a histogram behind them, and to the limits.
void cuda_count(uintptr_t x, int x_type, uintptr_t out, int out_type, const Ints& sizes,
                const Ints& x_strides, const Ints& out_strides, const Ints& quantizer,
                uint64_t seed, uintptr_t device_seed, uint64_t role, uint32_t site,
                const Ints& counting, uintptr_t stream) {
  check_size(quantizer, kFormatInts + 4, "a quantizer");
  const cuda::Draws draws{seed, pointer<const int64_t>(device_seed), role, site};
  cuda::count_elements(pointer<const void>(x), static_cast<cuda::ElementType>(x_type),
                       pointer<void>(out), static_cast<cuda::ElementType>(out_type),
                       views_from(sizes, x_strides, out_strides), quantizer.data(), draws,
                       counting_from(counting), pointer<void>(stream));
}

void cuda_count_scaled(uintptr_t x, int x_type, uintptr_t out, const Ints& sizes,
                       const Ints& quantizer, uint64_t seed, uintptr_t device_seed, uint64_t role,
                       uint32_t site, const Ints& scratch, const Ints& counting, uintptr_t stream) {
  const cuda::ScaledArgs args =
      scaled_args(x, x_type, out, sizes, quantizer, seed, device_seed, role, site, scratch);
  const auto count = is_block(quantizer) ? cuda::count_blocks : cuda::count_affine;
  count(args, counting_from(counting), pointer<void>(stream));
}

cuda::CodeArgs code_args(const Ints& format, const Ints& sizes) {
  check_size(format, (is_block(format) ? 2 : 1) * kFormatInts, "a format");
  return {format.data(), axis_from(sizes)};
}

void cuda_pack(uintptr_t x, const Ints& format, const Ints& sizes, uintptr_t words,
               uintptr_t refused, uintptr_t stream) {
  cuda::pack_codes(code_args(format, sizes), pointer<const float>(x), pointer<uint32_t>(words),
                   pointer<int64_t>(refused), pointer<void>(stream));
}

void cuda_unpack(uintptr_t codes, int64_t bytes, const Ints& format, const Ints& sizes,
                 uintptr_t out, uintptr_t stream) {
  cuda::unpack_codes(code_args(format, sizes), pointer<const uint8_t>(codes), bytes,
                     pointer<float>(out), pointer<void>(stream));
}

}  // namespace

void register_cuda(pybind11::module_& module) {
  namespace py = pybind11;
  module.attr("has_cuda") = true;
  module.def("cuda_quantize", &cuda_quantize, py::call_guard<py::gil_scoped_release>(),
             py::arg("x"), py::arg("x_type"), py::arg("out"), py::arg("out_type"), py::arg("sizes"),
             py::arg("x_strides"), py::arg("out_strides"), py::arg("quantizer"), py::arg("seed"),
             py::arg("device_seed"), py::arg("role"), py::arg("site"), py::arg("stream"));
  module.def("cuda_quantize_scaled", &cuda_quantize_scaled,
             py::call_guard<py::gil_scoped_release>(), py::arg("x"), py::arg("x_type"),
             py::arg("out"), py::arg("sizes"), py::arg("quantizer"), py::arg("seed"),
             py::arg("device_seed"), py::arg("role"), py::arg("site"), py::arg("scratch"),
             py::arg("stream"));
  module.def("cuda_count", &cuda_count, py::call_guard<py::gil_scoped_release>(), py::arg("x"),
             py::arg("x_type"), py::arg("out"), py::arg("out_type"), py::arg("sizes"),
             py::arg("x_strides"), py::arg("out_strides"), py::arg("quantizer"), py::arg("seed"),
             py::arg("device_seed"), py::arg("role"), py::arg("site"), py::arg("counting"),
             py::arg("stream"));
  module.def("cuda_count_scaled", &cuda_count_scaled, py::call_guard<py::gil_scoped_release>(),
             py::arg("x"), py::arg("x_type"), py::arg("out"), py::arg("sizes"),
             py::arg("quantizer"), py::arg("seed"), py::arg("device_seed"), py::arg("role"),
             py::arg("site"), py::arg("scratch"), py::arg("counting"), py::arg("stream"));
  module.def("cuda_pack", &cuda_pack, py::call_guard<py::gil_scoped_release>(), py::arg("x"),
             py::arg("format"), py::arg("sizes"), py::arg("words"), py::arg("refused"),
             py::arg("stream"));
  module.def("cuda_unpack", &cuda_unpack, py::call_guard<py::gil_scoped_release>(),
             py::arg("codes"), py::arg("bytes"), py::arg("format"), py::arg("sizes"),
             py::arg("out"), py::arg("stream"));
  register_cuda_products(module);
  register_cuda_update(module);
}

}  // namespace lpk
