// Codes times the scales of their blocks times the tensor's scale. The codes are numbers, or a
// stream with the scales in front; and totals, which multiply the result of a product.
#include <algorithm>
#include <vector>

#include "codes.h"
#include "cpu/drivers/parallel.h"
#include "pack.h"

namespace lpk {
namespace {

// x = codes times scales times t, rounded once. fetch: returns `count` codes from a row-major place
// on, in the buffer if it has to. exact: codes times scales are float32 values. by_line: t has a
// number for every line.
template <class Fetch>
void multiply(const PackArgs& args, const float* scale, const float* t, bool by_line, bool exact,
              float* x, const Fetch& fetch) {
  const Grid grid = args.grid.joined(by_line);
  const Kernels& kernel = kernels();
  const BlockKernels& by = *kernels().families.blocks;
  const int64_t across = grid.across(), rows = grid.outer * grid.rows;
  // Whole tiles, or parts of one.
  const bool parts = grid.wide > kPiece;
  const int64_t width = parts ? kPiece : kPiece / grid.wide * grid.wide;
  const int64_t per_tile = (grid.wide + kPiece - 1) / kPiece;
  const bool has_t = by_line || *t != 1;
  const int64_t strips = parts ? across * per_tile : (grid.cols + width - 1) / width;
  const int threads = grid.count() < 2 * kGrain ? 1 : args.threads;
  parallel_ranges(
      rows * strips, std::max<int64_t>(1, kGrain / kPiece), threads,
      [&](int64_t begin, int64_t end) {
        std::vector<float> columns(kPiece + kSlack), buffer(kPiece);
        float one[kSlack];
        std::fill_n(one, kSlack, *t);
        std::vector<double> values(kPiece);
        ScaledSpan span{};
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = i / strips, strip = i % strips;
          const int64_t tile = parts ? strip / per_tile : strip * (width / grid.wide);
          const int64_t col = parts ? tile * grid.wide + strip % per_tile * kPiece : strip * width;
          const int64_t stop =
              std::min({col + width, grid.cols, parts ? (tile + 1) * grid.wide : grid.cols});
          if (col >= stop) continue;
          const int64_t band = row / grid.rows * grid.down() + row % grid.rows / grid.tall;
          by.spread(scale + band * across + tile, stop - col, parts ? stop - col : grid.wide,
                    columns.data());
          span.count = stop - col;
          span.has_t = has_t;
          if (by_line && grid.wide > 1) std::fill_n(one, kSlack, t[row]);
          span.tiles = {nullptr, columns.data(), one, 0};
          if (by_line && grid.wide == 1) {
            span.tiles.t = t + row / grid.rows * grid.cols + col;
            span.tiles.t_step = 1;
          }
          const int64_t index = row * grid.cols + col;
          const float* codes = fetch(index, span.count, buffer.data());
          if (exact) {
            by.products(span, codes, x + index);
          } else {
            kernel.widen(codes, span.count, values.data());
            by.values(span, values.data(), x + index);
          }
        }
      });
}

// Whether the product of a code and a scale is a float32 value, whichever they are.
bool exact_products(const BlockFormat& b) {
  const Format &q = b.element, &s = b.scale;
  return q.kind == Kind::kFloat && q.man_bits + s.man_bits + 2 <= 24 &&
         q.quantum * s.quantum >= 0x1p-149 && q.max * s.max < 0x1p127;
}

// How many numbers t has.
int64_t count_t(const PackArgs& args, const BlockFormat& format) {
  return format.by_line() ? args.grid.lines() : 1;
}

// Reads t, 1 where the format has none, and the scales of all tiles; returns where the elements
// begin.
const uint8_t* read_scales(const PackArgs& args, const uint8_t* codes, float* scales, float* t) {
  const BlockFormat format(args.format);
  *t = 1;
  if (format.has_tensor_scale()) {
    const size_t bytes = static_cast<size_t>(count_t(args, format)) * sizeof *t;
    std::memcpy(t, codes, bytes);
    codes += bytes;
  }
  const int64_t tiles = args.grid.tiles();
  if (format.kind == ScaleKind::kE8m0) {
    std::transform(codes, codes + tiles, scales, [](uint8_t code) { return scale_of_byte(code); });
    return codes + tiles;
  }
  if (format.kind == ScaleKind::kFp32) {
    std::memcpy(scales, codes, static_cast<size_t>(tiles) * sizeof(float));
    return codes + tiles * static_cast<int64_t>(sizeof(float));
  }
  const PackArgs of_scales{args.format + InBlock::kScaleFormat, tiles, {}, args.threads};
  unpack(of_scales, codes, scales);
  return codes + packed_bytes(of_scales);
}

PackArgs elements_of(const PackArgs& args) {
  return {args.format + InBlock::kElement, args.count, {}, args.threads};
}

// The rounded product of a value and a total.
float times(float value, float total) {
  const float product = value * total;
  return product == product ? product : canonical_nan();
}

}  // namespace

void multiply_totals(const TotalsArgs& args) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, args.cols));
  const int64_t lines = args.batch * args.rows;
  const int threads = lines * args.cols < 2 * kGrain ? 1 : args.threads;
  parallel_ranges(lines, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* values = args.values + row * args.cols;
      const float of_row = args.of_rows == nullptr ? 1 : args.of_rows[row * args.row_step];
      const float* of_cols = args.of_cols;
      if (of_cols != nullptr) of_cols += row / args.rows * args.column_batch;
      if (of_cols != nullptr && args.col_step != 0) {
        for (int64_t col = 0; col < args.cols; ++col)
          values[col] = times(values[col], of_row * of_cols[col]);
      } else {
        const float total = of_cols == nullptr ? of_row : of_row * *of_cols;
        for (int64_t col = 0; col < args.cols; ++col) values[col] = times(values[col], total);
      }
    }
  });
}

void dequantize_blocks(const PackArgs& args, const float* codes, const float* scale, const float* t,
                       bool by_line, float* x) {
  multiply(args, scale, t, by_line, !by_line && *t == 1, x,
           [&](int64_t index, int64_t, float*) { return codes + index; });
}

void unpack_apart(const PackArgs& args, const uint8_t* codes, float* x) {
  const BlockFormat format(args.format);
  std::vector<float> scale(static_cast<size_t>(args.grid.tiles()));
  std::vector<float> t(static_cast<size_t>(count_t(args, format)));
  codes = read_scales(args, codes, scale.data(), t.data());
  const Decoder decoder(args.format + InBlock::kElement);
  const bool exact = (!format.by_line() && t[0] == 1) || exact_products(format);
  multiply(args, scale.data(), t.data(), format.by_line(), exact, x,
           [&](int64_t index, int64_t count, float* buffer) {
             decoder.stream(codes, index * decoder.bits(), count, buffer);
             return buffer;
           });
}

int64_t pack_parts(const PackArgs& args, const Parts& parts, uint8_t* codes) {
  const BlockFormat format(args.format);
  if (format.has_tensor_scale()) {
    const size_t bytes = static_cast<size_t>(count_t(args, format)) * sizeof *parts.t;
    std::memcpy(codes, parts.t, bytes);
    codes += bytes;
  }
  const int64_t tiles = args.grid.tiles();
  if (format.kind == ScaleKind::kE8m0) {
    // The exponent field is the code of a power of two, and 255 that of NaN.
    codes = std::transform(parts.scales, parts.scales + tiles, codes, [](float scale) {
      return static_cast<uint8_t>(bits_of_float(scale) >> 23);
    });
  } else if (format.kind == ScaleKind::kFp32) {
    std::memcpy(codes, parts.scales, static_cast<size_t>(tiles) * sizeof(float));
    codes += tiles * static_cast<int64_t>(sizeof(float));
  } else {
    const PackArgs of_scales{args.format + InBlock::kScaleFormat, tiles, {}, args.threads};
    pack(of_scales, parts.scales, codes);
    codes += packed_bytes(of_scales);
  }
  return pack(elements_of(args), parts.elements, codes);
}

void unpack_parts(const PackArgs& args, const uint8_t* codes, const Parts& parts) {
  codes = read_scales(args, codes, parts.scales, parts.t);
  unpack(elements_of(args), codes, parts.elements);
}

}  // namespace lpk
