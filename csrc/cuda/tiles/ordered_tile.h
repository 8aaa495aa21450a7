// Sums in other orders than one product after the other, in double, for every format and mode.
//
// A thread takes its four outputs one after another, so that one copy of the roundings serves them.
// It keeps the state of its outputs in a part of shared memory of its own. Classes that derive from
// this one make the sum of a chunk, or of all steps, and close it.
#pragma once

#include "common/orders.h"
#include "cuda/operands/exact_operands.h"

namespace lpk::cuda {

constexpr int kOrderedSide = 2;

using OrderedMap = BlockMap<kOrderedSide, 1>;

// One quantity for each output of each thread.
template <class T>
using Kept = T[kOrderedSide * kOrderedSide][OrderedMap::kThreads];

struct OrderedShared : ExactStages<OrderedMap> {
  Kept<float> sum, outer;
};

// kNearest: sums are to nearest_even in a float format with a mantissa. Otherwise they are made in
// any way, as acc says.
template <bool kNearest>
class OrderedTile : public ExactOperands<kOrderedSide, 1> {
 public:
  // How many blocks a processor must hold.
  static constexpr int kBlocks = 2;
  LPK_HD OrderedTile(const Job& job, int64_t tile, int thread) : ExactOperands(job, tile, thread) {
    const Accumulator& acc = job.acc;
    const bool draws = acc.rounding == Rounding::kStochastic ||
                       (acc.has_product && acc.product_rounding == Rounding::kStochastic);
    if (draws) seed_ = job.use_seed();
  }

  template <class Shared>
  LPK_HD void finish(Shared* shared) const {
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) {
      const bool chunked = job_.acc.chunk != 0;
      store(n, chunked ? shared->outer[n][thread_] : shared->sum[n][thread_]);
    }
  }

 protected:
  template <class Shared>
  LPK_HD void begin_sums(Shared* shared) const {
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) {
      const float start = started(n);
      shared->outer[n][thread_] = start;
      shared->sum[n][thread_] = job_.acc.chunk == 0 ? start : 0.0f;
    }
  }

  // Ends a chunk: its sum goes to the outer sum, and begins again at zero.
  template <class Shared>
  LPK_HD void close_sum(Shared* shared, int n, int64_t chunk) const {
    if (job_.acc.chunk == 0) return;
    shared->outer[n][thread_] =
        closed_chunk(n, shared->outer[n][thread_], shared->sum[n][thread_], chunk);
    shared->sum[n][thread_] = 0.0f;
  }

  // The product of a stage's step for output n; it is `absent` if one of its taps is. `at` is the
  // step's position.
  LPK_HD double product(const ExactStages<OrderedMap>* shared, int buffer, int step, int n,
                        int64_t at) const {
    double a, b;
    read_shared<1>(&shared->left[buffer][step][Map::row(thread_, n / kOrderedSide)], &a);
    read_shared<1>(&shared->right[buffer][step][Map::col(thread_, n % kOrderedSide)], &b);
    if (absent(a) || absent(b)) return absent_double();
    const Accumulator& acc = job_.acc;
    const double exact = a * b;
    if (!acc.has_product) return exact;
    return round_to<double>(exact, acc.product, acc.product_rounding,
                            threshold(acc.product_rounding, kSiteProduct, n, at));
  }

  // x is a value of the format, and p is such a value or a product. `key` is the sum's place in a
  // draw.
  LPK_HD double add(double x, double p, int n, int64_t key) const {
    const Accumulator& acc = job_.acc;
    if (kNearest) return round_to_float_nearest_even<double>(odd_sum<double>(x, p), acc.fmt);
    return add_rounded<double>(x, p, acc.fmt, acc.rounding, sum_threshold(n, key));
  }
  LPK_HD double add_products(double p, double q, int n, int64_t key) const {
    const Accumulator& acc = job_.acc;
    if (kNearest) return round_to_float_nearest_even<double>(odd_sum<double>(p, q), acc.fmt);
    return add_products_rounded<double>(p, q, acc.fmt, acc.rounding, sum_threshold(n, key));
  }
  LPK_HD double rounded(double sum, int n, int64_t key) const {
    const Accumulator& acc = job_.acc;
    if (kNearest) return round_to_float_nearest_even<double>(sum, acc.fmt);
    return round_to<double>(sum, acc.fmt, acc.rounding, sum_threshold(n, key));
  }
  LPK_HD double sum_threshold(int n, int64_t key) const {
    return threshold(job_.acc.rounding, kSiteSum, n, key);
  }

 private:
  LPK_HD double threshold(Rounding mode, uint32_t site, int n, int64_t key) const {
    if (mode != Rounding::kStochastic) return 0.0;
    const Accumulator& acc = job_.acc;
    const uint32_t draw = random_draw(acc.rng, seed_, site, row_id(row_of(n)), col_id(col_of(n)),
                                      static_cast<uint64_t>(key), acc.random_bits);
    return stochastic_threshold<double>(draw, acc.random_bits);
  }

  uint64_t seed_ = 0;
};

LPK_HD bool sums_to_nearest(const Accumulator& acc) {
  return acc.rounding == Rounding::kNearestEven && acc.fmt.kind == Kind::kFloat &&
         acc.fmt.man_bits > 0 && !acc.fmt.is_unsigned;
}

}  // namespace lpk::cuda
