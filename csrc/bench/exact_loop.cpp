// The baseline "exact": an emulated product as the contract reads, one output and one multiply-add
// after the other, by the same rules as the kernels. Plain scalar C++ at -O3, one thread.
#include <algorithm>
#include <cstdint>

#include "common/accumulate.h"

// c (m, n) = a (m, k) b (k, n), contiguous, for sums in sequence without chunks; the integers are
// those of Accumulator.to_ints.
extern "C" void exact_matmul(const float* a, const float* b, float* c, int64_t m, int64_t k,
                             int64_t n, const int64_t* ints, uint64_t seed) {
  int64_t all[lpk::kAccumulatorInts] = {};
  std::copy_n(ints, lpk::kPlainAccumulatorInts, all);
  const lpk::Accumulator acc = lpk::accumulator_from(all);
  const auto threshold = [&](lpk::Rounding mode, lpk::Site site, int64_t i, int64_t j, int64_t l) {
    if (mode != lpk::Rounding::kStochastic) return 0.0;
    const uint32_t draw = lpk::random_draw(acc.rng, seed, site, i, j, l, acc.random_bits);
    return lpk::stochastic_threshold<double>(draw, acc.random_bits);
  };
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int64_t l = 0; l < k; ++l) {
        double product = static_cast<double>(a[i * k + l]) * b[l * n + j];
        if (acc.has_product) {
          const double t = threshold(acc.product_rounding, lpk::kSiteProduct, i, j, l);
          product = lpk::round_to<double>(product, acc.product, acc.product_rounding, t);
        }
        const double t = threshold(acc.rounding, lpk::kSiteSum, i, j, l);
        sum = lpk::add_rounded<double>(sum, product, acc.fmt, acc.rounding, t);
      }
      c[i * n + j] = lpk::canonical_float(sum);
    }
  }
}
