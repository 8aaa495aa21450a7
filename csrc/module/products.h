// Entry points of csrc/cpu's products: sums, sums by scale, their events.
#pragma once

#include <vector>

#include "arguments.h"
#include "cpu/conv/conv.h"
#include "cpu/drivers/gemm.h"
#include "cpu/sums/events/events.h"
#include "cpu/sums/grouped/grouped.h"

namespace lpk::bound {

// A quantizer that products apply themselves, or none.
inline const int64_t* fused_quantizer(const Ints& ints) {
  if (ints.empty()) return nullptr;
  LPK_CHECK(ints.size() == lpk::kFormatInts + 4, "a fused quantizer has 12 integers");
  LPK_CHECK(ints[lpk::kFormatInts] != static_cast<int64_t>(lpk::Rounding::kStochastic),
            "a fused quantizer draws nothing");
  return ints.data();
}

// Points into its arguments.
inline lpk::Arithmetic arithmetic_from(const Ints& accumulator, const Ints& left, const Ints& right,
                                       const Ints& result) {
  check_accumulator(accumulator);
  return {accumulator.data(), fused_quantizer(left), fused_quantizer(right),
          fused_quantizer(result)};
}

struct Factor {
  uintptr_t data;
  const Ints& strides;
  uintptr_t offsets;
};

// sizes: batch, m, n, k; strides: a row, a k and b k, b column. Offsets point to `batch` int64
// each.
inline lpk::MatmulArgs matmul_args(const Factor& a, const Factor& b, uintptr_t bias,
                                   uintptr_t initial, uintptr_t c, const Ints& sizes) {
  LPK_CHECK(sizes.size() == 4 && a.strides.size() == 2 && b.strides.size() == 2,
            "matmul takes four sizes and two strides of each factor");
  const auto side = [](const Factor& x, int64_t stride, int64_t k_stride) {
    return lpk::MatmulSide{pointer<const float>(x.data), pointer<const int64_t>(x.offsets), stride,
                           k_stride};
  };
  return {side(a, a.strides[0], a.strides[1]),
          side(b, b.strides[1], b.strides[0]),
          pointer<const float>(bias),
          pointer<float>(c),
          sizes[0],
          sizes[1],
          sizes[2],
          sizes[3],
          pointer<const float>(initial)};
}

// geometry: batch, groups, channels in and out per group, then input, kernel, output, stride,
// padding, dilation (3 each).
inline lpk::ConvShape conv_shape(const Ints& geometry) {
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
inline lpk::Image<const float> image(const Factor& x) {
  LPK_CHECK(x.strides.size() == 2 + lpk::kSpatial, "an image has five strides");
  const Ints& s = x.strides;
  return {pointer<const float>(x.data), s[0], s[1], {s[2], s[3], s[4]}};
}

// A contiguous result (outer, channels, *spatial).
inline lpk::Image<float> result_image(uintptr_t data, int64_t channels, const int64_t* spatial) {
  const int64_t line = spatial[2], plane = spatial[1] * line, all = spatial[0] * plane;
  return {pointer<float>(data), channels * all, all, {plane, line, 1}};
}

// The kinds of KINDS in lpkernels/backends/_protocol.py.
enum class ProductKind : int { kMatmul, kFprop, kDgrad, kWgrad };

// The `Product` and the `How` of lpkernels/backends/_protocol.py. sizes: those of matmul_args, or
// the geometry of conv_shape.
inline void multiply(int kind, uintptr_t left, uintptr_t right, uintptr_t bias, uintptr_t initial,
                     uintptr_t out, const Ints& sizes, const Ints& left_strides,
                     const Ints& right_strides, uintptr_t left_offsets, uintptr_t right_offsets,
                     const Ints& accumulator, const Ints& left_quantizer,
                     const Ints& right_quantizer, const Ints& result_quantizer, int64_t seed,
                     int64_t role, int threads) {
  const lpk::Arithmetic how =
      arithmetic_from(accumulator, left_quantizer, right_quantizer, result_quantizer);
  const Factor one{left, left_strides, left_offsets}, other{right, right_strides, right_offsets};
  const uint64_t key = role_seed(seed, role);
  if (static_cast<ProductKind>(kind) == ProductKind::kMatmul) {
    const lpk::MatmulArgs args = matmul_args(one, other, bias, initial, out, sizes);
    return lpk::matmul(args, how, key, threads);
  }
  const lpk::ConvShape s = conv_shape(sizes);
  const auto first = image(one), second = image(other);
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
inline void multiply_scaled(uintptr_t left, uintptr_t right, uintptr_t initial, uintptr_t out,
                            const Ints& sizes, const Ints& left_strides, const Ints& right_strides,
                            uintptr_t left_offsets, uintptr_t right_offsets, const Ints& scales,
                            const Ints& accumulator, int64_t seed, int64_t role, int threads) {
  check_accumulator(accumulator);
  LPK_CHECK(
      scales.size() == 7 && scales[4] >= 0 && scales[5] >= 0 && scales[6] >= 0 && scales[6] <= 3,
      "scales are four addresses, two sizes and an order");
  const auto at = [&](int i) { return static_cast<uintptr_t>(scales[i]); };
  const auto side = [&](int i) {
    return lpk::MatmulSideScales{pointer<const float>(at(i)), pointer<const int64_t>(at(2 + i)),
                                 scales[4 + i]};
  };
  const lpk::MatmulScales factors{side(0), side(1), static_cast<lpk::ScaleOrder>(scales[6])};
  const lpk::MatmulArgs args =
      matmul_args({left, left_strides, left_offsets}, {right, right_strides, right_offsets}, 0,
                  initial, out, sizes);
  const uint64_t key = role_seed(seed, role);
  lpk::matmul(args, {accumulator.data()}, key, threads, &factors);
}

// tensors: a, b and their scales; starts, or 0; the result. sizes: batch, m, n, k, the lengths of
// segments, the group, the least exponent of a scale.
inline void multiply_grouped(const std::vector<uintptr_t>& tensors, const Ints& sizes,
                             const Ints& accumulator, int threads) {
  LPK_CHECK(tensors.size() == 6 && sizes.size() == 8, "six tensors and eight sizes are expected");
  check_accumulator(accumulator);
  const lpk::GroupedArgs args{pointer<const float>(tensors[0]),
                              pointer<const float>(tensors[1]),
                              pointer<const float>(tensors[2]),
                              pointer<const float>(tensors[3]),
                              pointer<const float>(tensors[4]),
                              pointer<float>(tensors[5]),
                              sizes[0],
                              sizes[1],
                              sizes[2],
                              sizes[3],
                              sizes[4],
                              sizes[5],
                              sizes[6],
                              sizes[7],
                              accumulator.data()};
  lpk::matmul_grouped(args, threads);
}

// total[r][c] <- round(total[r][c] + addend[r][c]) in the outer format, both with dense rows, and
// those of the addend `addend_row` apart: 0 where it has one. key: first row and column, site, k.
inline void accumulate(uintptr_t total, uintptr_t addend, int64_t addend_row, int64_t rows,
                       int64_t cols, const Ints& accumulator, int64_t seed, int64_t role,
                       const Ints& key, int threads) {
  check_accumulator(accumulator);
  LPK_CHECK(key.size() == 4, "a key is (row, column, site, k)");
  const lpk::DrawKey first{role_seed(seed, role), static_cast<uint32_t>(key[2]),
                           static_cast<uint64_t>(key[0]), static_cast<uint64_t>(key[1]),
                           static_cast<uint64_t>(key[3])};
  lpk::accumulate_elements(pointer<float>(total), pointer<const float>(addend), addend_row, rows,
                           cols, accumulator.data(), first, threads);
}

// c = a b; sizes: m, n, k; strides: a row, a k, b k, b column; rows: the keys of their draws.
// Returns the five counts of EventCounts.
inline std::vector<int64_t> matmul_events(uintptr_t a, uintptr_t b, uintptr_t c, const Ints& sizes,
                                          const Ints& strides, uintptr_t rows,
                                          const Ints& accumulator, int64_t seed, int64_t role,
                                          int threads) {
  LPK_CHECK(sizes.size() == 3 && strides.size() == 4, "events take three sizes and four strides");
  check_accumulator(accumulator);
  using In = lpk::InAccumulator;
  const bool in_sequence =
      accumulator[In::kOrder] == static_cast<int64_t>(lpk::Order::kSequential) &&
      accumulator[In::kBlock] == 0;
  LPK_CHECK(in_sequence, "events are counted in sums in sequence and in chunks");
  const lpk::EventArgs args{pointer<const float>(a),
                            pointer<const float>(b),
                            pointer<float>(c),
                            sizes[0],
                            sizes[1],
                            sizes[2],
                            strides[0],
                            strides[1],
                            strides[2],
                            strides[3],
                            pointer<const int64_t>(rows),
                            accumulator.data(),
                            role_seed(seed, role)};
  const lpk::EventCounts e = lpk::matmul_events(args, threads);
  return {e.swamped, e.added, e.swamped_chunks, e.added_chunks, e.overflowed};
}

// Hands each function with its name to `define`.
template <class Define>
void define_products(const Define& define) {
  define("multiply", &multiply);
  define("multiply_scaled", &multiply_scaled);
  define("accumulate", &accumulate);
  define("multiply_grouped", &multiply_grouped);
  define("matmul_events", &matmul_events);
}

}  // namespace lpk::bound
