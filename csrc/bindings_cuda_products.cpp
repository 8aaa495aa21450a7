// pybind11 entry points of csrc/cuda's products: device pointers, sizes, strides and packed specs
// in, nothing out. The GIL is released.
#include <pybind11/stl.h>

#include <cstdint>

#include "bindings_cuda.h"
#include "common/accumulate.h"
#include "cuda/product/sums.h"

namespace lpk {
namespace {

// A quantizer that products apply themselves, or none.
const int64_t* fused_quantizer(const Ints& ints) {
  if (ints.empty()) return nullptr;
  check_size(ints, kFormatInts + 4, "a fused quantizer");
  return ints.data();
}

// Adds zeros for the integers of operands, which no accumulator of these kernels has.
Ints accumulator_ints(Ints ints) {
  check_size(ints, kPlainAccumulatorInts, "an accumulator");
  ints.resize(kAccumulatorInts);
  return ints;
}

// sizes: matrices, lanes, steps, padded lanes; strides of the three.
void cuda_pack_operand(uintptr_t from, const Ints& sizes, const Ints& strides, uintptr_t to,
                       uintptr_t facts, const Ints& quantizer, uintptr_t stream) {
  check_size(sizes, 4, "cuda_pack_operand: sizes");
  check_size(strides, 3, "cuda_pack_operand: strides");
  cuda::PackArgs args{};
  args.from = pointer<const float>(from);
  args.count = sizes[0];
  args.lanes = sizes[1];
  args.steps = sizes[2];
  args.padded = sizes[3];
  args.batch = strides[0];
  args.lane_stride = strides[1];
  args.step_stride = strides[2];
  args.to = pointer<float>(to);
  args.facts = pointer<cuda::Facts>(facts);
  args.quantizer = fused_quantizer(quantizer);
  cuda::pack_operand(args, pointer<void>(stream));
}

// sizes: images, channels, three of an image, three that lie before it in the frame, the frame's z
// and y, the fold and run of its lines; strides of images, channels and the three dimensions.
void cuda_frame(uintptr_t from, const Ints& sizes, const Ints& strides, bool channels_last,
                uintptr_t to, uintptr_t facts, const Ints& quantizer, uintptr_t stream) {
  check_size(sizes, 12, "cuda_frame: sizes");
  check_size(strides, 5, "cuda_frame: strides");
  cuda::FrameArgs args{};
  args.from = pointer<const float>(from);
  args.images = sizes[0];
  args.channels = sizes[1];
  for (int d = 0; d < 3; ++d) {
    args.size[d] = sizes[2 + d];
    args.before[d] = sizes[5 + d];
  }
  args.height[0] = sizes[8];
  args.height[1] = sizes[9];
  args.fold = sizes[10];
  args.run = sizes[11];
  for (int d = 0; d < 5; ++d) args.steps[d] = strides[d];
  args.channels_last = channels_last;
  args.to = pointer<float>(to);
  args.facts = pointer<cuda::Facts>(facts);
  args.quantizer = fused_quantizer(quantizer);
  cuda::frame(args, pointer<void>(stream));
}

// Pairs (table or 0, step).
class Lines {
 public:
  Lines(const Ints& ints, size_t count) : ints_(ints) { check_size(ints, 2 * count, "lines"); }
  cuda::Line next() {
    const cuda::Line line{pointer<const int64_t>(static_cast<uintptr_t>(ints_[at_])),
                          ints_[at_ + 1]};
    at_ += 2;
    return line;
  }

 private:
  const Ints& ints_;
  size_t at_ = 0;
};

// values, facts, 1 if some are absent; then the lines of matrices, lanes, steps.
cuda::Operand operand_from(const Ints& ints) {
  check_size(ints, 9, "an operand");
  const Ints rest(ints.begin() + 3, ints.end());
  Lines lines(rest, 3);
  cuda::Operand operand{};
  operand.values = pointer<const float>(static_cast<uintptr_t>(ints[0]));
  operand.facts = pointer<const cuda::Facts>(static_cast<uintptr_t>(ints[1]));
  operand.absent = ints[2] != 0;
  operand.batch = lines.next();
  operand.lanes = lines.next();
  operand.steps = lines.next();
  return operand;
}

// tensors: out, bias, positions, starts, chunks, initial; lines: of the output (matrices, rows,
// columns), of the rows' keys and the columns' (matrices, each).
cuda::Sums sums_from(const Ints& left, const Ints& right, const Ints& tensors, const Ints& lines,
                     const Ints& sizes) {
  check_size(tensors, 6, "cuda_multiply: tensors");
  check_size(sizes, 4, "cuda_multiply: sizes");
  cuda::Sums sums{};
  sums.left = operand_from(left);
  sums.right = operand_from(right);
  sums.out = pointer<float>(static_cast<uintptr_t>(tensors[0]));
  sums.bias = pointer<const float>(static_cast<uintptr_t>(tensors[1]));
  sums.positions = pointer<const int64_t>(static_cast<uintptr_t>(tensors[2]));
  sums.starts = pointer<const int64_t>(static_cast<uintptr_t>(tensors[3]));
  sums.chunks = tensors[4];
  sums.initial = pointer<const float>(static_cast<uintptr_t>(tensors[5]));
  Lines each(lines, 7);
  sums.batch = each.next();
  sums.rows = each.next();
  sums.cols = each.next();
  sums.row_batch = each.next();
  sums.row_keys = each.next();
  sums.col_batch = each.next();
  sums.col_keys = each.next();
  sums.count = sizes[0];
  sums.m = sizes[1];
  sums.n = sizes[2];
  sums.k = sizes[3];
  return sums;
}

// sizes: matrices, rows, columns.
int64_t cuda_scratch_bytes(const Ints& sizes, const Ints& accumulator) {
  check_size(sizes, 3, "cuda_scratch_bytes: sizes");
  const Ints integers = accumulator_ints(accumulator);
  cuda::Sums sums{};
  sums.count = sizes[0];
  sums.m = sizes[1];
  sums.n = sizes[2];
  return cuda::scratch_bytes(sums, integers.data());
}

void cuda_multiply(const Ints& left, const Ints& right, const Ints& tensors, const Ints& lines,
                   const Ints& sizes, const Ints& accumulator, const Ints& result, uint64_t seed,
                   uintptr_t device_seed, uint64_t role, uintptr_t scratch, uintptr_t stream) {
  const Ints integers = accumulator_ints(accumulator);
  cuda::MultiplyArgs args{};
  args.sums = sums_from(left, right, tensors, lines, sizes);
  args.accumulator = integers.data();
  args.result = fused_quantizer(result);
  args.draws = {seed, pointer<const int64_t>(device_seed), role, 0};
  args.scratch = pointer<void>(scratch);
  cuda::multiply(args, pointer<void>(stream));
}

// sizes and addend's strides: rows, columns; key: row, column, site, k of element (0, 0).
void cuda_accumulate(uintptr_t total, uintptr_t addend, const Ints& sizes, const Ints& strides,
                     const Ints& accumulator, uint64_t seed, uintptr_t device_seed, uint64_t role,
                     const Ints& key, uintptr_t stream) {
  check_size(sizes, 2, "cuda_accumulate: sizes");
  check_size(strides, 2, "cuda_accumulate: strides");
  check_size(key, 4, "cuda_accumulate: key");
  const Ints integers = accumulator_ints(accumulator);
  cuda::AddArgs args{};
  args.total = pointer<float>(total);
  args.addend = pointer<const float>(addend);
  args.rows = sizes[0];
  args.cols = sizes[1];
  args.row_stride = strides[0];
  args.col_stride = strides[1];
  args.draws = {seed, pointer<const int64_t>(device_seed), role, static_cast<uint32_t>(key[2])};
  args.row = static_cast<uint64_t>(key[0]);
  args.col = static_cast<uint64_t>(key[1]);
  args.k = static_cast<uint64_t>(key[3]);
  cuda::add(args, integers.data(), pointer<void>(stream));
}

}  // namespace

void register_cuda_products(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("cuda_pack_operand", &cuda_pack_operand, py::call_guard<py::gil_scoped_release>(),
             py::arg("source"), py::arg("sizes"), py::arg("strides"), py::arg("to"),
             py::arg("facts"), py::arg("quantizer"), py::arg("stream"));
  module.def("cuda_frame", &cuda_frame, py::call_guard<py::gil_scoped_release>(), py::arg("source"),
             py::arg("sizes"), py::arg("strides"), py::arg("channels_last"), py::arg("to"),
             py::arg("facts"), py::arg("quantizer"), py::arg("stream"));
  module.def("cuda_scratch_bytes", &cuda_scratch_bytes, py::arg("sizes"), py::arg("accumulator"));
  module.def("cuda_accumulate", &cuda_accumulate, py::call_guard<py::gil_scoped_release>(),
             py::arg("total"), py::arg("addend"), py::arg("sizes"), py::arg("strides"),
             py::arg("accumulator"), py::arg("seed"), py::arg("device_seed"), py::arg("role"),
             py::arg("key"), py::arg("stream"));
  module.def("cuda_multiply", &cuda_multiply, py::call_guard<py::gil_scoped_release>(),
             py::arg("left"), py::arg("right"), py::arg("tensors"), py::arg("lines"),
             py::arg("sizes"), py::arg("accumulator"), py::arg("result"), py::arg("seed"),
             py::arg("device_seed"), py::arg("role"), py::arg("scratch"), py::arg("stream"));
}

}  // namespace lpk
