// Entry points of csrc/cpu's elementwise operations: rounding, codes, transforms, tables.
#pragma once

#include <string>
#include <vector>

#include "arguments.h"
#include "common/count.h"
#include "cpu/elementwise/hadamard.h"
#include "cpu/elementwise/pack.h"
#include "cpu/elementwise/quantize.h"

namespace lpk::bound {

// Grid of lpkernels/formats/grids.py.
inline lpk::Grid grid_from(const Ints& sizes) {
  LPK_CHECK(sizes.size() == 5 && sizes[3] > 0 && sizes[4] > 0,
            "a grid is (outer, rows, cols, tall, wide)");
  return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
}

// quantizer: format integers, then rounding, random_bits, rng, 0. sizes: a grid for block formats,
// else (outer, length, inner).
inline lpk::QuantizeArgs quantize_args(uintptr_t x, uintptr_t y, int x_type, int y_type,
                                       const Ints& sizes, const Ints& quantizer, int64_t seed,
                                       int64_t role, int64_t site, int threads,
                                       int64_t stream_bytes) {
  LPK_CHECK(quantizer.size() == 12 || quantizer.size() == 20 || quantizer.size() == 28,
            "a quantizer has 12, 20 or 28 integers");
  lpk::QuantizeArgs args{};
  if (lpk::kind_of(quantizer.data()) == lpk::Kind::kBlock) {
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
  args.rounding = static_cast<lpk::Rounding>(tail[0]);
  args.random_bits = static_cast<int>(tail[1]);
  args.rng = static_cast<lpk::Rng>(tail[2]);
  args.seed = role_seed(seed, role);
  args.site = static_cast<uint32_t>(site);
  args.threads = threads;
  args.stream_bytes = stream_bytes;
  return args;
}

inline void quantize_tensor(const Ints& quantizer, const lpk::QuantizeArgs& args) {
  switch (lpk::kind_of(quantizer.data())) {
    case lpk::Kind::kAffine:
      return lpk::quantize_affine(args);
    case lpk::Kind::kBlock:
      return lpk::quantize_blocks(args);
    default:
      return lpk::quantize_elements(args);
  }
}

inline void quantize(uintptr_t x, uintptr_t y, int x_type, int y_type, const Ints& sizes,
                     const Ints& quantizer, int64_t seed, int64_t role, int64_t site, int threads,
                     int64_t stream_bytes) {
  const lpk::QuantizeArgs args = quantize_args(x, y, x_type, y_type, sizes, quantizer, seed, role,
                                               site, threads, stream_bytes);
  quantize_tensor(quantizer, args);
}

// Does what `quantize` does, and counts: the counts of common/count.h, and `bins` behind them. y
// may be 0 where there are counts. limits: the low ends and high ends of an affine format, the amax
// of a block format, or 0.
inline void quantize_counting(uintptr_t x, uintptr_t y, int x_type, int y_type, const Ints& sizes,
                              const Ints& quantizer, int64_t seed, int64_t role, int64_t site,
                              int threads, int64_t stream_bytes, uintptr_t counts, int64_t bins,
                              uintptr_t limits) {
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
inline void hadamard(uintptr_t x, uintptr_t y, int x_type, const Ints& sizes,
                     const std::string& signs, int threads, int64_t stream_bytes) {
  LPK_CHECK(sizes.size() == 3, "sizes are (outer, length, inner)");
  LPK_CHECK(signs.size() <= lpk::kMaxHadamard, "a transform has at most 128 signs");
  uint32_t words[lpk::kMaxHadamard] = {};
  for (size_t i = 0; i < signs.size(); ++i) words[i] = signs[i] != 0 ? 0x80000000u : 0;
  lpk::hadamard({pointer<const void>(x), pointer<float>(y), static_cast<lpk::ElementType>(x_type),
                 sizes[0], sizes[1], sizes[2], static_cast<int>(signs.size()), words, threads,
                 stream_bytes});
}

// Codes, scales and the tensor's scale of a block format; amax may be 0.
inline void scaled(uintptr_t x, int x_type, const std::vector<uintptr_t>& outputs,
                   const Ints& sizes, const Ints& quantizer, int64_t seed, int64_t role,
                   int64_t site, int threads, int64_t stream_bytes, uintptr_t amax) {
  LPK_CHECK(outputs.size() == 3, "scaled has three outputs");
  lpk::QuantizeArgs args = quantize_args(x, outputs[0], x_type, 0, sizes, quantizer, seed, role,
                                         site, threads, stream_bytes);
  args.scales = pointer<float>(outputs[1]);
  args.tensor_scale = pointer<float>(outputs[2]);
  args.limits = pointer<const double>(amax);
  lpk::quantize_blocks(args);
}

// sizes: a grid for block formats that are packed block by block, else (outer, length, inner).
inline lpk::PackArgs pack_args(const Ints& sizes, const Ints& format, int threads) {
  LPK_CHECK(format.size() == 8 || format.size() == 16 || format.size() == 24,
            "a format has 8, 16 or 24 integers");
  if (lpk::kind_of(format.data()) == lpk::Kind::kBlock) {
    const lpk::Grid grid = grid_from(sizes);
    return {format.data(), grid.count(), grid, threads};
  }
  LPK_CHECK(sizes.size() == 3, "sizes are (outer, length, inner)");
  return {format.data(), sizes[0] * sizes[1] * sizes[2], {}, threads};
}

inline int64_t packed_bytes(const Ints& sizes, const Ints& format) {
  return lpk::packed_bytes(pack_args(sizes, format, 1));
}

// quantizer: of a format without scales, by whose rounding the values become values of the format
// first; empty: they are that already.
inline int64_t pack(uintptr_t x, uintptr_t codes, const Ints& sizes, const Ints& format,
                    const Ints& quantizer, int threads) {
  LPK_CHECK(quantizer.empty() || (format.size() == 8 && quantizer.size() == 12),
            "a quantizer without scales has 12 integers");
  lpk::PackArgs args = pack_args(sizes, format, threads);
  if (!quantizer.empty()) args.quantizer = quantizer.data();
  return lpk::pack(args, pointer<const float>(x), pointer<uint8_t>(codes));
}

inline int64_t pack_scaled(uintptr_t values, uintptr_t scale, uintptr_t codes, const Ints& grid,
                           const Ints& format, int threads) {
  const lpk::PackArgs args = pack_args(grid, format, threads);
  return lpk::pack_blocks(args, pointer<const float>(values), pointer<const float>(scale),
                          pointer<uint8_t>(codes));
}

inline void unpack(uintptr_t codes, uintptr_t x, const Ints& sizes, const Ints& format,
                   int threads) {
  const lpk::PackArgs args = pack_args(sizes, format, threads);
  lpk::unpack(args, pointer<const uint8_t>(codes), pointer<float>(x));
}

// Codes, scales and the tensor's scale of a block format, at three addresses, as one stream.
inline lpk::Parts parts_at(const Ints& addresses) {
  LPK_CHECK(addresses.size() == 3, "a tensor has three parts");
  const auto at = [&](int i) { return pointer<float>(static_cast<uintptr_t>(addresses[i])); };
  return {at(0), at(1), at(2)};
}

inline int64_t pack_parts(const Ints& parts, uintptr_t codes, const Ints& grid, const Ints& format,
                          int threads) {
  return lpk::pack_parts(pack_args(grid, format, threads), parts_at(parts),
                         pointer<uint8_t>(codes));
}

inline void unpack_parts(uintptr_t codes, const Ints& parts, const Ints& grid, const Ints& format,
                         int threads) {
  lpk::unpack_parts(pack_args(grid, format, threads), pointer<const uint8_t>(codes),
                    parts_at(parts));
}

// by_line: the tensor's scale is one for each line.
inline void dequantize(uintptr_t values, uintptr_t scale, uintptr_t tensor_scale, uintptr_t x,
                       const Ints& grid, bool by_line, int threads) {
  const lpk::Grid tiles = grid_from(grid);
  const lpk::PackArgs args{nullptr, tiles.count(), tiles, threads};
  lpk::dequantize_blocks(args, pointer<const float>(values), pointer<const float>(scale),
                         pointer<const float>(tensor_scale), by_line, pointer<float>(x));
}

// sizes: batch, rows, columns, then the three steps of TotalsArgs.
inline void multiply_totals(uintptr_t values, uintptr_t of_rows, uintptr_t of_cols,
                            const Ints& sizes, int threads) {
  LPK_CHECK(sizes.size() == 6, "three sizes and three steps are expected");
  lpk::multiply_totals({pointer<float>(values), sizes[0], sizes[1], sizes[2],
                        pointer<const float>(of_rows), pointer<const float>(of_cols), sizes[3],
                        sizes[4], sizes[5], threads});
}

// A TableFormat, from then on known by its handle. codes: int32; ladders: the thresholds of
// lpkernels/backends/ladders.py; numbers: handle, values, bits, nan_code or -1, infinity_is_nan.
inline void add_table(uintptr_t values, uintptr_t codes, uintptr_t ladders, const Ints& numbers) {
  LPK_CHECK(numbers.size() == 5, "a table has five numbers");
  lpk::add_table(numbers[0], {numbers[1], pointer<const double>(values),
                              pointer<const int32_t>(codes), pointer<const double>(ladders),
                              static_cast<int>(numbers[2]), numbers[3], numbers[4] != 0});
}

template <class Define>
void define_elementwise(const Define& define) {
  define("quantize", &quantize);
  define("quantize_counting", &quantize_counting);
  define("hadamard", &hadamard);
  define("scaled", &scaled);
  define("packed_bytes", &packed_bytes);
  define("pack", &pack);
  define("pack_scaled", &pack_scaled);
  define("unpack", &unpack);
  define("dequantize", &dequantize);
  define("multiply_totals", &multiply_totals);
  define("pack_parts", &pack_parts);
  define("unpack_parts", &unpack_parts);
  define("add_table", &add_table);
}

}  // namespace lpk::bound
