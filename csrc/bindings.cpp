// lpkernels._C: pointers, sizes, strides and integer specs in, results written in place. No torch,
// and no Python object is touched while a kernel runs (the interpreter lock is released). Adapters:
// lpkernels/backends/cpu.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings_cuda.h"
#include "common/accumulate.h"
#include "common/check.h"
#include "common/count.h"
#include "cpu/conv/conv.h"
#include "cpu/drivers/gemm.h"
#include "cpu/drivers/parallel.h"
#include "cpu/drivers/tile.h"
#include "cpu/elementwise/hadamard.h"
#include "cpu/elementwise/pack.h"
#include "cpu/elementwise/quantize.h"
#include "cpu/sums/events/events.h"

namespace py = pybind11;

namespace lpk {
void register_certificate(py::module_& module);
void register_update(py::module_& module);
}  // namespace lpk

namespace {

// A tuple or list of at most as many Python integers as an Accumulator has: read in place, nothing
// allocated. Zeros stand behind them.
class Ints {
 public:
  static constexpr Py_ssize_t kMost = lpk::kAccumulatorInts;

  bool read(PyObject* from) {
    if (!PyTuple_Check(from) && !PyList_Check(from)) return false;
    size_ = PySequence_Fast_GET_SIZE(from);
    if (size_ > kMost) return false;
    PyObject** items = PySequence_Fast_ITEMS(from);
    for (Py_ssize_t i = 0; i < size_; ++i) {
      values_[i] = PyLong_AsLongLong(items[i]);
      if (values_[i] == -1 && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return false;
      }
    }
    return true;
  }

  size_t size() const { return static_cast<size_t>(size_); }
  bool empty() const { return size_ == 0; }
  const int64_t* data() const { return values_; }
  int64_t operator[](size_t i) const { return values_[i]; }

 private:
  int64_t values_[kMost] = {};
  Py_ssize_t size_ = 0;
};

}  // namespace

namespace pybind11::detail {
template <>
struct type_caster<Ints> {
  PYBIND11_TYPE_CASTER(Ints, const_name("Sequence[int]"));
  bool load(handle from, bool) { return value.read(from.ptr()); }
};
}  // namespace pybind11::detail

namespace {

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Seeds are int64 in torch and 64 random bits here.
uint64_t role_seed(int64_t seed, int64_t role) {
  return lpk::derive_seed(static_cast<uint64_t>(seed), static_cast<uint64_t>(role));
}

void check_accumulator(const Ints& ints) {
  LPK_CHECK(ints.size() == lpk::kPlainAccumulatorInts || ints.size() == lpk::kAccumulatorInts,
            "an accumulator has 35 integers, or 54");
}

// A quantizer that products apply themselves, or none.
const int64_t* fused_quantizer(const Ints& ints) {
  if (ints.empty()) return nullptr;
  LPK_CHECK(ints.size() == lpk::kFormatInts + 4, "a fused quantizer has 12 integers");
  LPK_CHECK(ints[lpk::kFormatInts] != static_cast<int64_t>(lpk::Rounding::kStochastic),
            "a fused quantizer draws nothing");
  return ints.data();
}

// Points into its arguments.
lpk::Arithmetic arithmetic_from(const Ints& accumulator, const Ints& left, const Ints& right,
                                const Ints& result) {
  check_accumulator(accumulator);
  return {accumulator.data(), fused_quantizer(left), fused_quantizer(right),
          fused_quantizer(result)};
}

// Grid of lpkernels/formats/grids.py.
lpk::Grid grid_from(const Ints& sizes) {
  LPK_CHECK(sizes.size() == 5 && sizes[3] > 0 && sizes[4] > 0,
            "a grid is (outer, rows, cols, tall, wide)");
  return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
}

// quantizer: format integers, then rounding, random_bits, rng, 0. sizes: a grid for block formats,
// else (outer, length, inner).
lpk::QuantizeArgs quantize_args(uintptr_t x, uintptr_t y, int x_type, int y_type, const Ints& sizes,
                                const Ints& quantizer, int64_t seed, int64_t role, int64_t site,
                                int threads, int64_t stream_bytes) {
  LPK_CHECK(quantizer.size() == 12 || quantizer.size() == 20 || quantizer.size() == 28,
            "a quantizer has 12, 20 or 28 integers");
  lpk::QuantizeArgs args{};
  if (static_cast<lpk::Kind>(quantizer[0]) == lpk::Kind::kBlock) {
    args.grid = grid_from(sizes);
    args.count = args.grid.count();
  } else {
    LPK_CHECK(sizes.size() == 3, "sizes are (outer, length, inner)");
    args.outer = sizes[0];
    args.length = sizes[1];
    args.inner = sizes[2];
    args.count = sizes[0] * sizes[1] * sizes[2];
  }
  args.x = pointer<const void>(x);
  args.y = pointer<void>(y);
  args.x_type = static_cast<lpk::ElementType>(x_type);
  args.y_type = static_cast<lpk::ElementType>(y_type);
  args.format = quantizer.data();
  const int64_t* tail = quantizer.data() + quantizer.size() - 4;
  args.rounding = tail[0];
  args.random_bits = tail[1];
  args.rng = tail[2];
  args.seed = role_seed(seed, role);
  args.site = static_cast<uint32_t>(site);
  args.threads = threads;
  args.stream_bytes = stream_bytes;
  return args;
}

void quantize_tensor(const Ints& quantizer, const lpk::QuantizeArgs& args) {
  const py::gil_scoped_release release;
  switch (static_cast<lpk::Kind>(quantizer[0])) {
    case lpk::Kind::kAffine:
      return lpk::quantize_affine(args);
    case lpk::Kind::kBlock:
      return lpk::quantize_blocks(args);
    default:
      return lpk::quantize_elements(args);
  }
}

void quantize(uintptr_t x, uintptr_t y, int x_type, int y_type, const Ints& sizes,
              const Ints& quantizer, int64_t seed, int64_t role, int64_t site, int threads,
              int64_t stream_bytes) {
  const lpk::QuantizeArgs args = quantize_args(x, y, x_type, y_type, sizes, quantizer, seed, role,
                                               site, threads, stream_bytes);
  quantize_tensor(quantizer, args);
}

// Does what `quantize` does, and counts: the counts of common/count.h, and `bins` behind them. y
// may be 0 where there are counts. limits: the low ends and high ends of an affine format, the amax
// of a block format, or 0.
void quantize_counting(uintptr_t x, uintptr_t y, int x_type, int y_type, const Ints& sizes,
                       const Ints& quantizer, int64_t seed, int64_t role, int64_t site, int threads,
                       int64_t stream_bytes, uintptr_t counts, int64_t bins, uintptr_t limits) {
  LPK_CHECK(bins == 0 || bins == lpk::kBins, "a histogram has 256 bins");
  LPK_CHECK(y != 0 || counts != 0, "rounding must be written or counted");
  lpk::QuantizeArgs args = quantize_args(x, y, x_type, y_type, sizes, quantizer, seed, role, site,
                                         threads, stream_bytes);
  args.counts = pointer<int64_t>(counts);
  args.histogram = bins != 0;
  args.limits = pointer<const double>(limits);
  quantize_tensor(quantizer, args);
}

// signs: a byte for each value of a run, 1 where it is negated.
void hadamard(uintptr_t x, uintptr_t y, int x_type, const Ints& sizes, const std::string& signs,
              int threads, int64_t stream_bytes) {
  LPK_CHECK(sizes.size() == 3, "sizes are (outer, length, inner)");
  LPK_CHECK(signs.size() <= lpk::kMaxHadamard, "a transform has at most 128 signs");
  uint32_t words[lpk::kMaxHadamard] = {};
  for (size_t i = 0; i < signs.size(); ++i) words[i] = signs[i] != 0 ? 0x80000000u : 0;
  const py::gil_scoped_release release;
  lpk::hadamard({pointer<const void>(x), pointer<float>(y), static_cast<lpk::ElementType>(x_type),
                 sizes[0], sizes[1], sizes[2], static_cast<int>(signs.size()), words, threads,
                 stream_bytes});
}

// Codes, scales and the tensor's scale of a block format; amax may be 0.
void scaled(uintptr_t x, int x_type, const std::vector<uintptr_t>& outputs, const Ints& sizes,
            const Ints& quantizer, int64_t seed, int64_t role, int64_t site, int threads,
            int64_t stream_bytes, uintptr_t amax) {
  LPK_CHECK(outputs.size() == 3, "scaled has three outputs");
  lpk::QuantizeArgs args = quantize_args(x, outputs[0], x_type, 0, sizes, quantizer, seed, role,
                                         site, threads, stream_bytes);
  args.scales = pointer<float>(outputs[1]);
  args.tensor_scale = pointer<float>(outputs[2]);
  args.limits = pointer<const double>(amax);
  const py::gil_scoped_release release;
  lpk::quantize_blocks(args);
}

// sizes: a grid for block formats that are packed block by block, else (outer, length, inner).
lpk::PackArgs pack_args(const Ints& sizes, const Ints& format, int threads) {
  LPK_CHECK(format.size() == 8 || format.size() == 16 || format.size() == 24,
            "a format has 8, 16 or 24 integers");
  if (static_cast<lpk::Kind>(format[0]) == lpk::Kind::kBlock) {
    const lpk::Grid grid = grid_from(sizes);
    return {format.data(), grid.count(), grid, threads};
  }
  LPK_CHECK(sizes.size() == 3, "sizes are (outer, length, inner)");
  return {format.data(), sizes[0] * sizes[1] * sizes[2], {}, threads};
}

int64_t packed_bytes(const Ints& sizes, const Ints& format) {
  return lpk::packed_bytes(pack_args(sizes, format, 1));
}

int64_t pack(uintptr_t x, uintptr_t codes, const Ints& sizes, const Ints& format, int threads) {
  const lpk::PackArgs args = pack_args(sizes, format, threads);
  const py::gil_scoped_release release;
  return lpk::pack(args, pointer<const float>(x), pointer<uint8_t>(codes));
}

int64_t pack_scaled(uintptr_t values, uintptr_t scale, uintptr_t codes, const Ints& grid,
                    const Ints& format, int threads) {
  const lpk::PackArgs args = pack_args(grid, format, threads);
  const py::gil_scoped_release release;
  return lpk::pack_blocks(args, pointer<const float>(values), pointer<const float>(scale),
                          pointer<uint8_t>(codes));
}

void unpack(uintptr_t codes, uintptr_t x, const Ints& sizes, const Ints& format, int threads) {
  const lpk::PackArgs args = pack_args(sizes, format, threads);
  const py::gil_scoped_release release;
  lpk::unpack(args, pointer<const uint8_t>(codes), pointer<float>(x));
}

void dequantize(uintptr_t values, uintptr_t scale, uintptr_t tensor_scale, uintptr_t x,
                const Ints& grid, int threads) {
  const lpk::Grid tiles = grid_from(grid);
  const lpk::PackArgs args{nullptr, tiles.count(), tiles, threads};
  const py::gil_scoped_release release;
  lpk::dequantize_blocks(args, pointer<const float>(values), pointer<const float>(scale),
                         *pointer<const float>(tensor_scale), pointer<float>(x));
}

struct Factor {
  uintptr_t data;
  const Ints& strides;
  uintptr_t offsets;
};

// sizes: batch, m, n, k; strides: a row, a k and b k, b column. Offsets point to `batch` int64
// each.
lpk::MatmulArgs matmul_args(const Factor& a, const Factor& b, uintptr_t bias, uintptr_t initial,
                            uintptr_t c, const Ints& sizes) {
  LPK_CHECK(sizes.size() == 4 && a.strides.size() == 2 && b.strides.size() == 2,
            "matmul takes four sizes and two strides of each factor");
  return {pointer<const float>(a.data),
          pointer<const float>(b.data),
          pointer<const float>(bias),
          pointer<float>(c),
          sizes[0],
          sizes[1],
          sizes[2],
          sizes[3],
          pointer<const int64_t>(a.offsets),
          pointer<const int64_t>(b.offsets),
          a.strides[0],
          a.strides[1],
          b.strides[0],
          b.strides[1],
          pointer<const float>(initial)};
}

// geometry: batch, groups, channels in and out per group, then input, kernel, output, stride,
// padding, dilation (3 each).
lpk::ConvShape conv_shape(const Ints& geometry) {
  LPK_CHECK(geometry.size() == 4 + 6 * lpk::kSpatial, "a convolution's geometry has 22 integers");
  lpk::ConvShape s{geometry[0], geometry[1], geometry[2], geometry[3], {}, {}, {}, {}, {}, {}};
  int64_t* parts[] = {s.input, s.kernel, s.output, s.stride, s.padding, s.dilation};
  const int64_t* from = geometry.data() + 4;
  for (int64_t* part : parts) {
    for (int i = 0; i < lpk::kSpatial; ++i) part[i] = *from++;
  }
  return s;
}

// strides: outer, channel, d, h, w.
lpk::Image<const float> image(const Factor& x) {
  LPK_CHECK(x.strides.size() == 2 + lpk::kSpatial, "an image has five strides");
  const Ints& s = x.strides;
  return {pointer<const float>(x.data), s[0], s[1], {s[2], s[3], s[4]}};
}

// A contiguous result (outer, channels, *spatial).
lpk::Image<float> result_image(uintptr_t data, int64_t channels, const int64_t* spatial) {
  const int64_t line = spatial[2], plane = spatial[1] * line, all = spatial[0] * plane;
  return {pointer<float>(data), channels * all, all, {plane, line, 1}};
}

// The kinds of KINDS in lpkernels/backends/_protocol.py.
enum class ProductKind : int { kMatmul, kFprop, kDgrad, kWgrad };

// The `Product` and the `How` of lpkernels/backends/_protocol.py. sizes: those of matmul_args, or
// the geometry of conv_shape.
void multiply(int kind, uintptr_t left, uintptr_t right, uintptr_t bias, uintptr_t initial,
              uintptr_t out, const Ints& sizes, const Ints& left_strides, const Ints& right_strides,
              uintptr_t left_offsets, uintptr_t right_offsets, const Ints& accumulator,
              const Ints& left_quantizer, const Ints& right_quantizer, const Ints& result_quantizer,
              int64_t seed, int64_t role, int threads) {
  const lpk::Arithmetic how =
      arithmetic_from(accumulator, left_quantizer, right_quantizer, result_quantizer);
  const Factor one{left, left_strides, left_offsets}, other{right, right_strides, right_offsets};
  const uint64_t key = role_seed(seed, role);
  if (static_cast<ProductKind>(kind) == ProductKind::kMatmul) {
    const lpk::MatmulArgs args = matmul_args(one, other, bias, initial, out, sizes);
    const py::gil_scoped_release release;
    return lpk::matmul(args, how, key, threads);
  }
  const lpk::ConvShape s = conv_shape(sizes);
  const auto first = image(one), second = image(other);
  const py::gil_scoped_release release;
  switch (static_cast<ProductKind>(kind)) {
    case ProductKind::kFprop:
      return lpk::conv_fprop(s, first, second, pointer<const float>(bias),
                             result_image(out, s.groups * s.out_channels, s.output), how, key,
                             threads);
    case ProductKind::kDgrad:
      return lpk::conv_dgrad(s, first, second, result_image(out, s.groups * s.in_channels, s.input),
                             how, key, threads);
    default:
      return lpk::conv_wgrad(s, first, second, result_image(out, s.in_channels, s.kernel), how, key,
                             threads);
  }
}

// A matmul of codes in an accumulator with chunk="scale". scales: addresses of the scales of rows
// and columns, of int64 offsets to each batch entry's, then their sizes and the ScaleOrder.
void multiply_scaled(uintptr_t left, uintptr_t right, uintptr_t initial, uintptr_t out,
                     const Ints& sizes, const Ints& left_strides, const Ints& right_strides,
                     uintptr_t left_offsets, uintptr_t right_offsets, const Ints& scales,
                     const Ints& accumulator, int64_t seed, int64_t role, int threads) {
  check_accumulator(accumulator);
  LPK_CHECK(
      scales.size() == 7 && scales[4] >= 0 && scales[5] >= 0 && scales[6] >= 0 && scales[6] <= 3,
      "scales are four addresses, two sizes and an order");
  const auto at = [&](int i) { return static_cast<uintptr_t>(scales[i]); };
  const lpk::MatmulScales factors{pointer<const float>(at(0)),
                                  pointer<const float>(at(1)),
                                  pointer<const int64_t>(at(2)),
                                  pointer<const int64_t>(at(3)),
                                  scales[4],
                                  scales[5],
                                  static_cast<lpk::ScaleOrder>(scales[6])};
  const lpk::MatmulArgs args =
      matmul_args({left, left_strides, left_offsets}, {right, right_strides, right_offsets}, 0,
                  initial, out, sizes);
  const uint64_t key = role_seed(seed, role);
  const py::gil_scoped_release release;
  lpk::matmul(args, {accumulator.data()}, key, threads, &factors);
}

// total[r][c] <- round(total[r][c] + addend[r][c]) in the outer format, both contiguous. key: first
// row and column, site, k.
void accumulate(uintptr_t total, uintptr_t addend, int64_t rows, int64_t cols,
                const Ints& accumulator, int64_t seed, int64_t role, const Ints& key, int threads) {
  check_accumulator(accumulator);
  LPK_CHECK(key.size() == 4, "a key is (row, column, site, k)");
  const lpk::DrawKey first{role_seed(seed, role), static_cast<uint32_t>(key[2]),
                           static_cast<uint64_t>(key[0]), static_cast<uint64_t>(key[1]),
                           static_cast<uint64_t>(key[3])};
  const py::gil_scoped_release release;
  lpk::accumulate_elements(pointer<float>(total), pointer<const float>(addend), rows, cols,
                           accumulator.data(), first, threads);
}

void check_has_bits(const Ints& accumulator) {
  LPK_CHECK(accumulator[lpk::InAccumulator::kOrder] != static_cast<int64_t>(lpk::Order::kPairwise),
            "the products of a tree have no bits of their own");
}

// sizes: m, n, k; strides: a row, a k, b k, b column; draws: the rows' keys, the first column's.
lpk::EventArgs event_args(uintptr_t a, uintptr_t b, const Ints& sizes, const Ints& strides,
                          const Ints& draws, const Ints& accumulator, int64_t seed, int64_t role) {
  LPK_CHECK(sizes.size() == 3 && strides.size() == 4 && draws.size() == 2,
            "events take three sizes, four strides and two keys");
  check_accumulator(accumulator);
  return {pointer<const float>(a),
          pointer<const float>(b),
          nullptr,
          nullptr,
          nullptr,
          sizes[0],
          sizes[1],
          sizes[2],
          strides[0],
          strides[1],
          strides[2],
          strides[3],
          pointer<const int64_t>(static_cast<uintptr_t>(draws[0])),
          draws[1],
          accumulator.data(),
          role_seed(seed, role)};
}

// outputs: c, bits of the products, bits of the chunks; 0 for those not wanted. Returns the five
// counts of EventCounts.
std::vector<int64_t> matmul_events(uintptr_t a, uintptr_t b, const std::vector<uintptr_t>& outputs,
                                   const Ints& sizes, const Ints& strides, const Ints& draws,
                                   const Ints& accumulator, int64_t seed, int64_t role,
                                   int threads) {
  LPK_CHECK(outputs.size() == 3, "matmul_events takes three outputs");
  lpk::EventArgs args = event_args(a, b, sizes, strides, draws, accumulator, seed, role);
  if (outputs[1] != 0) check_has_bits(accumulator);
  args.c = pointer<float>(outputs[0]);
  args.products = pointer<uint8_t>(outputs[1]);
  args.chunks = pointer<uint8_t>(outputs[2]);
  const py::gil_scoped_release release;
  const lpk::EventCounts c = lpk::matmul_events(args, threads);
  return {c.swamped, c.added, c.swamped_chunks, c.added_chunks, c.overflowed};
}

// g, and the gradients of a and b.
void masked_gradients(uintptr_t a, uintptr_t b, uintptr_t g, uintptr_t left, uintptr_t right,
                      const Ints& sizes, const Ints& strides, const Ints& draws,
                      const Ints& accumulator, int64_t seed, int64_t role, int bits, bool recursive,
                      int threads) {
  const lpk::EventArgs args = event_args(a, b, sizes, strides, draws, accumulator, seed, role);
  check_has_bits(accumulator);
  const py::gil_scoped_release release;
  lpk::masked_gradients({args, pointer<const float>(g), pointer<float>(left), pointer<float>(right),
                         static_cast<uint8_t>(bits), recursive},
                        threads);
}

// Products accumulated by each tier since the last call.
py::dict take_tiers() {
  int64_t counts[static_cast<int>(lpk::Tier::kCount)];
  lpk::take_counts(counts);
  py::dict tiers;
  tiers["hardware"] = counts[0];
  tiers["certified"] = counts[1];
  tiers["float"] = counts[2];
  tiers["double"] = counts[3];
  return tiers;
}

std::string isa() { return lpk::kernels().isa; }

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() =
      "lpkernels kernels: pointers and integers in, results in place; used through "
      "lpkernels.backends";
  m.def("isa", &isa);
  m.def("take_tiers", &take_tiers);
  m.def("quantize", &quantize);
  m.def("quantize_counting", &quantize_counting);
  m.def("hadamard", &hadamard);
  m.def("scaled", &scaled);
  m.def("packed_bytes", &packed_bytes);
  m.def("pack", &pack);
  m.def("pack_scaled", &pack_scaled);
  m.def("unpack", &unpack);
  m.def("dequantize", &dequantize);
  m.def("multiply", &multiply);
  m.def("multiply_scaled", &multiply_scaled);
  m.def("accumulate", &accumulate);
  m.def("matmul_events", &matmul_events);
  m.def("masked_gradients", &masked_gradients);
  lpk::register_certificate(m);
  lpk::register_update(m);
#if defined(LPK_CUDA)
  lpk::register_cuda(m);
#endif
}
