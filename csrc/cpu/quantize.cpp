#include "quantize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/accumulate.h"
#include "parallel.h"
#include "tile.h"

namespace lpk {
namespace {

// Elements converted at a time: in and out as doubles they fit the first cache.
constexpr int64_t kSpan = 1024;
// Elements a thread takes at a time.
constexpr int64_t kGrain = 64 * kSpan;

RoundBlock round_job(const QuantizeArgs& args, const int64_t* format) {
  RoundBlock job{};
  job.format = format;
  job.rounding = args.rounding;
  job.random_bits = args.random_bits;
  job.rng = args.rng;
  job.seed = args.seed;
  job.site = args.site;
  return job;
}

double element_threshold(const QuantizeArgs& args, uint64_t index) {
  if (static_cast<Rounding>(args.rounding) != Rounding::kStochastic) return 0.0;
  const int bits = static_cast<int>(args.random_bits);
  const Rng rng = static_cast<Rng>(args.rng);
  return stochastic_threshold<double>(random_draw(rng, args.seed, args.site, 0, 0, index, bits),
                                      bits);
}

void put(const QuantizeArgs& args, int64_t index, double value) {
  narrow(&value, args.y_type, index, 1, args.y);
}

// floor(log2 a) of a finite positive double.
int floor_log2(double a) { return std::ilogb(a); }

// Elements of one block are `inner` apart.
struct BlockSlice {
  int64_t first;
  int64_t count;
  int64_t stride;
};

void quantize_block(const QuantizeArgs& args, const Format& element, int emax,
                    const BlockSlice& block) {
  double largest = 0.0;
  bool finite = true;
  for (int64_t i = 0; i < block.count; ++i) {
    const double a = std::fabs(widen_one(args.x, args.x_type, block.first + i * block.stride));
    finite &= a < HUGE_VAL;
    largest = std::max(largest, a);
  }
  const int scale = largest == 0.0 ? -127 : std::clamp(floor_log2(largest) - emax, -127, 127);
  const Rounding mode = static_cast<Rounding>(args.rounding);
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t index = block.first + i * block.stride;
    if (!finite) {
      put(args, index, NAN);
      continue;
    }
    const double x = widen_one(args.x, args.x_type, index);
    // Scaling a double by a power of two is exact until it falls below 2^-1022, far below every
    // element's half step.
    const double scaled = std::ldexp(moderated(x), -scale);
    const double rounded = round_to<double>(scaled, element, mode, element_threshold(args, index));
    put(args, index, std::ldexp(rounded, scale));
  }
}

// The line that an affine slice is coded on; codes run from `first` to `last`.
struct AffineGrid {
  double lo, hi;
  double step;
  double first, last;
  bool floored;  // the range was too small for the step: 1e-8 stands in
  bool any;
};

constexpr double kSmallestStep = 1e-8;

AffineGrid affine_grid(const QuantizeArgs& args, int64_t bits, bool symmetric,
                       const BlockSlice* slices, int64_t count) {
  double lo = HUGE_VAL;
  double hi = -HUGE_VAL;
  for (int64_t s = 0; s < count; ++s) {
    for (int64_t i = 0; i < slices[s].count; ++i) {
      const double x = widen_one(args.x, args.x_type, slices[s].first + i * slices[s].stride);
      if (!(std::fabs(x) < HUGE_VAL)) continue;
      lo = std::min(lo, x);
      hi = std::max(hi, x);
    }
  }
  AffineGrid grid{};
  grid.any = lo <= hi;
  double step;
  if (symmetric) {
    const double codes = power_of_two(static_cast<int>(bits) - 1) - 1;
    grid.first = -codes;
    grid.last = codes;
    step = std::max(std::fabs(lo), std::fabs(hi)) / codes;
  } else {
    grid.lo = lo;
    grid.hi = hi;
    grid.last = power_of_two(static_cast<int>(bits)) - 1;
    step = (hi - lo) / grid.last;
  }
  grid.floored = !(step >= kSmallestStep);
  grid.step = grid.floored ? kSmallestStep : step;
  return grid;
}

double affine_value(const AffineGrid& grid, bool symmetric, double x, const Format& integers,
                    Rounding mode, double threshold) {
  if (!grid.any || x != x) return NAN;
  const double u = std::clamp((x - grid.lo) / grid.step, grid.first, grid.last);
  const double code = round_to<double>(u, integers, mode, threshold);
  if (!symmetric && code == grid.last && !grid.floored) return grid.hi + 0.0;
  return code * grid.step + grid.lo;
}

}  // namespace

void quantize_elements(const QuantizeArgs& args) {
  const Kernels& kernel = kernels();
  parallel_ranges(args.count, kGrain, args.threads, [&](int64_t begin, int64_t end) {
    double values[kSpan];
    RoundBlock job = round_job(args, args.format);
    job.x = values;
    job.y = values;
    for (int64_t i = begin; i < end; i += kSpan) {
      job.count = std::min(kSpan, end - i);
      job.index = i;
      widen(args.x, args.x_type, i, job.count, values);
      if (args.x_type == ElementType::kFloat64)
        std::transform(values, values + job.count, values, moderated);
      kernel.round(job);
      narrow(values, args.y_type, i, job.count, args.y);
    }
  });
}

void quantize_blocks(const QuantizeArgs& args) {
  const int64_t block_size = args.format[1];
  Format element = number_format(args.format + kFormatInts);
  element.overflow = Overflow::kSaturate;
  element.beyond = element.max;
  const int emax = std::ilogb(element.max);
  const int64_t blocks = (args.length + block_size - 1) / block_size;
  parallel_ranges(args.outer * blocks * args.inner, 64, args.threads,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t inner = i % args.inner;
                      const int64_t start = i / args.inner % blocks * block_size;
                      const int64_t outer = i / args.inner / blocks;
                      const BlockSlice block{(outer * args.length + start) * args.inner + inner,
                                             std::min(block_size, args.length - start), args.inner};
                      quantize_block(args, element, emax, block);
                    }
                  });
}

void quantize_affine(const QuantizeArgs& args) {
  const int64_t bits = args.format[1];
  const bool symmetric = args.format[2] != 0;
  const Rounding mode = static_cast<Rounding>(args.rounding);
  // Codes have at most 17 bits with their sign: integers rounded in a fixed format that never
  // saturates.
  const int64_t integers_spec[kFormatInts] = {
      static_cast<int64_t>(Kind::kFixed), 24, 0, 1, 0, 0, 0, 0};
  const Format integers = number_format(integers_spec);
  // Slice `slice` along the axis: `outer` runs of `inner` consecutive elements.
  parallel_for(args.length, args.threads, [&](int64_t slice) {
    std::vector<BlockSlice> runs;
    for (int64_t outer = 0; outer < args.outer; ++outer) {
      runs.push_back({(outer * args.length + slice) * args.inner, args.inner, 1});
    }
    const AffineGrid grid =
        affine_grid(args, bits, symmetric, runs.data(), static_cast<int64_t>(runs.size()));
    for (const BlockSlice& run : runs) {
      for (int64_t i = 0; i < run.count; ++i) {
        const int64_t index = run.first + i;
        const double x = widen_one(args.x, args.x_type, index);
        const double value =
            affine_value(grid, symmetric, x, integers, mode, element_threshold(args, index));
        // A zero result is +0.
        put(args, index, static_cast<double>(static_cast<float>(value)) + 0.0);
      }
    }
  });
}

}  // namespace lpk
