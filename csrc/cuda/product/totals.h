// The steps of a sum before and after its products: where it starts, the end of a chunk, the bias,
// the result's quantizer.
#pragma once

#include "sums.h"

namespace lpk::cuda {

// The sum of a chunk, or of all: -0 stands for +0 in formats with one zero.
LPK_HD double with_its_zero(double sum, const Format& f) { return f.one_zero ? sum + 0.0 : sum; }

// outer <- round(outer + inner) for outer formats with a mantissa, to nearest.
LPK_HD float closed(const Accumulator& acc, double outer, double inner) {
  inner = with_its_zero(inner, acc.fmt);
  return static_cast<float>(
      round_to_float_nearest_even<double>(odd_sum<double>(outer, inner), acc.outer));
}

LPK_HD double drawn_threshold(const Job& job, uint32_t site, uint64_t row, uint64_t col,
                              uint64_t k) {
  const Accumulator& acc = job.acc;
  const uint32_t draw = random_draw(acc.rng, job.use_seed(), site, row, col, k, acc.random_bits);
  return stochastic_threshold<double>(draw, acc.random_bits);
}

// outer <- round(outer + inner) by the accumulator's rounding of outer sums, which is `mode`, for
// any outer format: the end of a chunk of the output with these keys.
LPK_HD float closed_by(const Job& job, Rounding mode, double outer, double inner, uint64_t row,
                       uint64_t col, uint64_t chunk) {
  const double threshold =
      mode == Rounding::kStochastic ? drawn_threshold(job, kSiteOuter, row, col, chunk) : 0.0;
  inner = with_its_zero(inner, job.acc.fmt);
  return static_cast<float>(add_rounded<double>(outer, inner, job.acc.outer, mode, threshold));
}

// Where the sum that becomes the result starts, if it starts elsewhere than at +0. The draw of an
// output with these keys is the one behind the draw of its bias.
LPK_HD float first_sum(const Job& job, float initial, uint64_t row, uint64_t col) {
  const Accumulator& acc = job.acc;
  const bool draws = acc.outer_rounding == Rounding::kStochastic;
  const double threshold = draws ? drawn_threshold(job, kSiteBias, row, col, 1) : 0.0;
  const Format& f = acc.chunk == 0 ? acc.fmt : acc.outer;
  return canonical_float(round_to<double>(initial, f, acc.outer_rounding, threshold));
}

// The output with these keys after its bias, then its quantizer.
LPK_HD float finished(const Job& job, double sum, uint64_t row, uint64_t col) {
  const Accumulator& acc = job.acc;
  const Format& f = acc.chunk == 0 ? acc.fmt : acc.outer;
  if (job.sums.bias != nullptr) {
    const bool draws = acc.outer_rounding == Rounding::kStochastic;
    const double threshold = draws ? drawn_threshold(job, kSiteBias, row, col, 0) : 0.0;
    sum = add_rounded<double>(sum, job.sums.bias[col], f, acc.outer_rounding, threshold);
  }
  sum = with_its_zero(sum, f);
  if (job.result.rounds) sum = round_to<double>(sum, job.result.fmt, job.result.rounding, 0.0);
  return canonical_float(sum);
}

// Element i of AddArgs, in row-major order, after its addition.
LPK_HD float added(const AddArgs& args, const Accumulator& acc, int64_t i) {
  const int64_t row = i / args.cols;
  const int64_t col = i % args.cols;
  double threshold = 0.0;
  if (acc.outer_rounding == Rounding::kStochastic) {
    const int64_t* on_device = args.draws.device_seed;
    const uint64_t seed =
        derive_seed(on_device != nullptr ? static_cast<uint64_t>(*on_device) : args.draws.seed,
                    args.draws.role);
    const uint32_t draw =
        random_draw(acc.rng, seed, args.draws.site, args.row + static_cast<uint64_t>(row),
                    args.col + static_cast<uint64_t>(col), args.k, acc.random_bits);
    threshold = stochastic_threshold<double>(draw, acc.random_bits);
  }
  const float addend = args.addend[row * args.row_stride + col * args.col_stride];
  return canonical_float(
      add_rounded<double>(args.total[i], addend, acc.outer, acc.outer_rounding, threshold));
}

}  // namespace lpk::cuda
