// Block formats (OCP MX): the scale of every block, then its elements, scaled, rounded, scaled
// back.
//
// A tile is some rows (elements along the axis) by some columns (neighbours in memory), columns of
// one row contiguous. Where the axis is the innermost, whole blocks are rows of one tile; else a
// tile is one block deep and columns are blocks.
#include <vector>

#include "cpu/drivers/parallel.h"
#include "quantize_spans.h"

namespace lpk {
namespace {

// Blocks that are longer than this are rounded one by one.
constexpr int64_t kLongest = kSpan;
// Elements a thread takes at a time.
constexpr int64_t kGrain = 16 * kSpan;

struct Blocks {
  const QuantizeArgs& args;
  const Kernels& kernel;
  BlockElement element;
  int64_t size;
  int64_t per_line;  // blocks along the axis

  explicit Blocks(const QuantizeArgs& a)
      : args(a),
        kernel(kernels()),
        element(a.format + kFormatInts),
        size(a.format[1]),
        per_line((a.length + size - 1) / size) {}

  int64_t count_of(int64_t block) const {
    return std::min(size, args.length - block % per_line * size);
  }
  int64_t start_of(int64_t block) const {
    return (block / per_line * args.length + block % per_line * size) * args.inner;
  }
};

// Rounds elements that are scaled by 2^-X and back; they become NaN throughout where X belongs to a
// block with inf or NaN.
struct Scale {
  double down, up;
  Scale(const BlockElement& e, double lo, double hi, bool finite) {
    const int x = finite ? e.exponent_for(std::max(-lo, hi)) : 0;
    down = finite ? power_of_two(-x) : NAN;
    up = power_of_two(x);
  }
};

// One block, whatever its length: the axis has elements `inner` apart.
void round_long_block(const Blocks& b, int64_t block, int64_t column) {
  const QuantizeArgs& args = b.args;
  const int64_t first = b.start_of(block) + column;
  const int64_t count = b.count_of(block);
  const int64_t span = args.inner == 1 ? kSpan : 1;
  double x[kSpan];
  double lo = 0, hi = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; i += span) {
    const int64_t n = std::min(span, count - i);
    load_moderated(args, b.kernel, first + i * args.inner, n, x);
    finite &= b.kernel.range(x, n, false, &lo, &hi);
  }
  const Scale scale(b.element, lo, hi, finite);
  Counted counted(args);
  RoundBlock job = round_job(args, b.element.ints);
  job.x = job.y = x;
  for (int64_t i = 0; i < count; i += span) {
    const int64_t index = first + i * args.inner;
    job.count = std::min(span, count - i);
    job.index = static_cast<uint64_t>(index);
    load_moderated(args, b.kernel, index, job.count, x);
    counted.saw(x, job.count);
    for (int64_t k = 0; k < job.count; ++k) x[k] *= scale.down;
    counted.round(b.kernel, job);
    for (int64_t k = 0; k < job.count; ++k) x[k] *= scale.up;
    store_span(args, b.kernel, x, index, job.count);
  }
}

// Blocks first .. last of a tensor whose axis is the innermost: neighbours in memory.
void round_neighbours(const Blocks& b, int64_t first, int64_t last) {
  double values[kSpan], ups[kSpan];
  Counted counted(b.args);
  RoundBlock job = round_job(b.args, b.element.ints);
  job.x = values;
  job.y = values;
  for (int64_t block = first; block < last;) {
    const int64_t start = b.start_of(block);
    int64_t filled = 0;
    for (; block < last && filled + b.count_of(block) <= kSpan; ++block) {
      const int64_t count = b.count_of(block);
      double* x = values + filled;
      load_moderated(b.args, b.kernel, start + filled, count, x);
      counted.saw(x, count, filled);
      double lo = 0, hi = 0;
      const bool finite = b.kernel.range(x, count, false, &lo, &hi);
      const Scale scale(b.element, lo, hi, finite);
      for (int64_t i = 0; i < count; ++i) x[i] *= scale.down;
      std::fill(ups + filled, ups + filled + count, scale.up);
      filled += count;
    }
    job.count = filled;
    job.index = static_cast<uint64_t>(start);
    counted.round(b.kernel, job);
    for (int64_t i = 0; i < filled; ++i) values[i] *= ups[i];
    store_span(b.args, b.kernel, values, start, filled);
  }
}

// `width` blocks side by side, from column `column` on; a block's elements are `inner` apart.
void round_columns(const Blocks& b, int64_t block, int64_t column, int64_t width) {
  const QuantizeArgs& args = b.args;
  const int64_t first = b.start_of(block) + column;
  const int64_t rows = b.count_of(block);
  std::vector<double> values(rows * width), lo(width, 0.0), hi(width, 0.0), down(width), up(width);
  bool finite = true;
  for (int64_t r = 0; r < rows; ++r) {
    load_moderated(args, b.kernel, first + r * args.inner, width, &values[r * width]);
    finite &= b.kernel.range(&values[r * width], width, true, lo.data(), hi.data());
  }
  for (int64_t c = 0; c < width; ++c) {
    bool column_finite = true;
    for (int64_t r = 0; !finite && r < rows; ++r)
      column_finite &= std::fabs(values[r * width + c]) < HUGE_VAL;
    const Scale scale(b.element, lo[c], hi[c], column_finite);
    down[c] = scale.down;
    up[c] = scale.up;
  }
  Counted counted(args);
  RoundBlock job = round_job(args, b.element.ints);
  job.count = width;
  for (int64_t r = 0; r < rows; ++r) {
    double* x = &values[r * width];
    const int64_t index = first + r * args.inner;
    counted.saw(x, width);
    for (int64_t c = 0; c < width; ++c) x[c] *= down[c];
    job.x = job.y = x;
    job.index = static_cast<uint64_t>(index);
    counted.round(b.kernel, job);
    for (int64_t c = 0; c < width; ++c) x[c] *= up[c];
    store_span(args, b.kernel, x, index, width);
  }
}

}  // namespace

void quantize_blocks(const QuantizeArgs& args) {
  const Blocks b(args);
  const int64_t blocks = args.outer * b.per_line;
  if (b.size > kLongest) {
    parallel_for(blocks * args.inner, args.threads,
                 [&](int64_t i) { round_long_block(b, i / args.inner, i % args.inner); });
  } else if (args.inner == 1) {
    const int64_t grain = std::max<int64_t>(1, kGrain / b.size);
    parallel_ranges(blocks, grain, args.threads,
                    [&](int64_t begin, int64_t end) { round_neighbours(b, begin, end); });
  } else {
    // Where events are counted, the columns are no more than a span.
    const int64_t most = args.counts == nullptr ? kGrain : kSpan;
    const int64_t width = std::max<int64_t>(1, std::min(most, kGrain / b.size));
    const int64_t strips = (args.inner + width - 1) / width;
    parallel_for(blocks * strips, args.threads, [&](int64_t i) {
      const int64_t column = i % strips * width;
      round_columns(b, i / strips, column, std::min(width, args.inner - column));
    });
  }
}

}  // namespace lpk
