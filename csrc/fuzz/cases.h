// What is computed of an input, compared with plain loops.
#pragma once

#include <cstdlib>

#include "conv_check.h"
#include "cpu/elementwise/pack.h"
#include "cpu/elementwise/quantize.h"
#include "input.h"
#include "matmul_check.h"

namespace lpk_fuzz {

using lpk::ElementType;

constexpr uint64_t kSeed = 0x9e3779b97f4a7c15;

inline Data any_data(Input& in) { return static_cast<Data>(in.below(7)); }
inline int any_threads(Input& in) { return 1 + in.below(3); }

inline void run_matmul(Input& in) {
  const AccumulatorSpec spec = any_accumulator(in);
  const int size = in.below(4);
  // Long sums pass from one block of k to the next; wide products fill panels of lanes.
  Shape shape{1 + in.below(2), 1 + in.below(size == 3 ? 40 : 6), in.below(40),
              1 + in.below(size == 2 ? 80 : 20)};
  if (size == 1) shape.k += 260;
  const auto layout = [&] { return static_cast<Layout>(in.below(3)); };
  const Layout left = layout(), right = layout();
  const MatmulCase c{shape,           any_data(in),          left,
                     right,           in.once_in(2),         in.once_in(2),
                     any_threads(in), any_exponent(spec, in)};
  check_matmul(spec, c, in.source());
}

inline void run_conv(Input& in) {
  const AccumulatorSpec spec = any_accumulator(in);
  Conv conv{"any",           1 + in.below(2), 1 + in.below(in.once_in(2) ? 20 : 2),
            1 + in.below(4), 1 + in.below(4), {{1, 1, 1}},
            {{1, 1, 1}},     {{1, 1, 1}},     {{0, 0, 0}},
            {{1, 1, 1}}};
  const int pass = in.below(3);
  for (int d = in.below(3); d < 3; ++d) {
    conv.kernel.v[d] = 1 + in.below(4);
    conv.dilation.v[d] = 1 + in.below(3);
    conv.stride.v[d] = 1 + in.below(3);
    conv.padding.v[d] = in.below(4);
    // The size is as small as the kernel allows, or larger.
    const int64_t reach = conv.dilation.v[d] * (conv.kernel.v[d] - 1) + 1;
    const int64_t least = std::max<int64_t>(reach - 2 * conv.padding.v[d], 1);
    conv.input.v[d] = least + in.below(d == 2 ? 12 : 4);
  }
  const bool last = in.once_in(2);
  const int exponent = any_exponent(spec, in);
  ConvCheck check(conv, spec, any_data(in), last, any_threads(in), in.source(), exponent);
  if (pass == 0) check.fprop();
  if (pass == 1) check.dgrad();
  if (pass == 2) check.wgrad();
}

inline lpk::QuantizeArgs whole_tensor(const float* x, float* y, int64_t count) {
  lpk::QuantizeArgs args{};
  args.x = x;
  args.y = y;
  args.x_type = args.y_type = ElementType::kFloat32;
  args.count = args.length = count;
  args.outer = args.inner = 1;
  args.seed = kSeed;
  args.site = lpk::kSiteQuantize;
  return args;
}

inline void any_mode(lpk::QuantizeArgs& args, Input& in) {
  args.rounding = any_rounding(in);
  args.random_bits = static_cast<int>(1 + in.below(32));
  args.rng = static_cast<lpk::Rng>(in.below(2));
  args.threads = any_threads(in);
  args.stream_bytes = in.once_in(3) ? 1 : int64_t{1} << 40;
}

inline std::vector<float> any_values(Input& in, int64_t count) {
  const Data data = any_data(in);
  Source source = in.source();
  return operands(data, source, count);
}

inline void run_quantize(Input& in) {
  const FormatInts format = any_format(in);
  const int64_t count = in.below(200);
  std::vector<float> y(static_cast<size_t>(count), 77.0f);
  lpk::QuantizeArgs args = whole_tensor(nullptr, y.data(), count);
  any_mode(args, in);
  const std::vector<float> x = any_values(in, count);
  args.x = x.data();
  args.format = format.data();
  lpk::quantize_elements(args);
  const lpk::Format f = lpk::number_format(format.data());
  for (int64_t i = 0; i < count; ++i) {
    double threshold = 0;
    if (args.rounding == Rounding::kStochastic) {
      const uint32_t draw = lpk::random_draw(args.rng, kSeed, lpk::kSiteQuantize, 0, 0,
                                             static_cast<uint64_t>(i), args.random_bits);
      threshold = lpk::stochastic_threshold<double>(draw, args.random_bits);
    }
    const double want = lpk::round_to<double>(x[i], f, args.rounding, threshold);
    CHECK_SAME(y[i], lpk::canonical_float(want), text("quantize, element %d", int(i)));
  }
}

// Formats that scale: any number of threads gives the results of one thread.
inline void run_scaled(Input& in) {
  const bool blocks = in.once_in(2);
  static const std::vector<NamedFormat> kElements = narrow_float_formats();
  std::array<int64_t, 2 * lpk::kFormatInts> format{};
  if (blocks) {
    const FormatInts element = one_of(kElements, in).ints;
    format[0] = 3;
    format[1] = 1 + in.below(40);
    std::copy(element.begin(), element.end(), format.begin() + lpk::kFormatInts);
  } else {
    format[0] = 2;
    format[1] = 1 + in.below(24);
    format[2] = format[1] > 1 ? in.below(2) : 0;
    format[3] = 1;
  }
  const int64_t outer = 1 + in.below(4), length = 1 + in.below(50), inner = 1 + in.below(5);
  const auto count = static_cast<size_t>(outer * length * inner);
  std::vector<float> y(count, 77.0f), again(count, 78.0f);
  lpk::QuantizeArgs args = whole_tensor(nullptr, y.data(), static_cast<int64_t>(count));
  any_mode(args, in);
  const std::vector<float> x = any_values(in, static_cast<int64_t>(count));
  args.x = x.data();
  args.format = format.data();
  args.outer = outer;
  args.length = length;
  args.inner = inner;
  if (blocks) args.grid = {outer, length, inner, std::min(format[1], length), 1};
  const auto run = blocks ? lpk::quantize_blocks : lpk::quantize_affine;
  run(args);
  args.y = again.data();
  args.threads = 1;
  run(args);
  for (size_t i = 0; i < count; ++i)
    CHECK_SAME(y[i], again[i], text("%s, element %d", blocks ? "blocks" : "affine", int(i)));
}

// Any bytes are codes of some values, and these values have codes again.
inline void run_codes(Input& in) {
  static const std::vector<NamedFormat> kLists[] = {narrow_float_formats(), fixed_formats(),
                                                    table_formats()};
  const FormatInts format = one_of(kLists[in.below(3)], in).ints;
  const int64_t count = in.below(200);
  const lpk::PackArgs args{format.data(), count, {}, any_threads(in)};
  const auto size = static_cast<size_t>(lpk::packed_bytes(args));
  std::vector<uint8_t> codes(size), again(size, 0xaa);
  Source source = in.source();
  for (uint8_t& code : codes) code = static_cast<uint8_t>(source.next() >> 40);
  std::vector<float> x(static_cast<size_t>(count), 77.0f), y(x);
  lpk::unpack(args, codes.data(), x.data());
  CHECK_SAME(lpk::pack(args, x.data(), again.data()), int64_t{-1}, std::string("codes"));
  lpk::unpack(args, again.data(), y.data());
  for (size_t i = 0; i < y.size(); ++i) CHECK_SAME(y[i], x[i], text("codes, element %d", int(i)));
}

constexpr void (*kRuns[])(Input&) = {run_matmul, run_conv, run_quantize, run_scaled, run_codes};

// Computes what the bytes choose; a result with other bits ends the program.
inline int run(const uint8_t* bytes, size_t count) {
  Input in(bytes, count);
  kRuns[in.below(5)](in);
  if (counts.failed > 0) std::abort();
  return 0;
}

}  // namespace lpk_fuzz
