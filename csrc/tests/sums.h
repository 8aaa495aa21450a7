// One emulated sum as a plain loop over the steps of common/accumulate.h, and the data to feed it.
#pragma once

#include "../cpu/element_types.h"
#include "values.h"

namespace lpk_test {

// A product of a sum; an absent one adds nothing, but its position counts.
struct Tap {
  bool present;
  float a;
  float b;
};

class PlainSum {
 public:
  PlainSum(const AccumulatorSpec& spec, uint64_t seed)
      : acc_(lpk::accumulator_from(spec.ints().data())), seed_(seed) {}

  // The sum of tap(0) .. tap(length - 1), then the bias where there is one.
  template <class Taps>
  float run(int64_t length, uint64_t row, uint64_t col, const Taps& tap, const float* bias) const {
    double inner = 0;
    double outer = 0;
    for (int64_t k = 0; k < length; ++k) {
      const Tap t = tap(k);
      if (t.present) {
        inner = add(inner, product(t, row, col, k), acc_.fmt, lpk::kSiteSum, row, col, k);
      }
      if (acc_.chunk > 0 && ((k + 1) % acc_.chunk == 0 || k + 1 == length)) {
        outer = add(outer, inner, acc_.outer, lpk::kSiteOuter, row, col, k / acc_.chunk);
        inner = 0;
      }
    }
    const lpk::Format& last = acc_.chunk > 0 ? acc_.outer : acc_.fmt;
    double sum = acc_.chunk > 0 ? outer : inner;
    if (bias != nullptr) sum = add(sum, *bias, last, lpk::kSiteBias, row, col, 0);
    return lpk::canonical_float(sum);
  }

 private:
  double threshold(Rounding rounding, uint32_t site, uint64_t row, uint64_t col, uint64_t k) const {
    if (rounding != Rounding::kStochastic) return 0;
    const uint32_t draw = lpk::random_draw(acc_.rng, seed_, site, row, col, k, acc_.random_bits);
    return lpk::stochastic_threshold<double>(draw, acc_.random_bits);
  }
  double product(const Tap& t, uint64_t row, uint64_t col, uint64_t k) const {
    const double exact = static_cast<double>(t.a) * static_cast<double>(t.b);
    if (!acc_.has_product) return exact;
    return lpk::round_to<double>(exact, acc_.product, acc_.product_rounding,
                                 threshold(acc_.product_rounding, lpk::kSiteProduct, row, col, k));
  }
  double add(double sum, double p, const lpk::Format& f, uint32_t site, uint64_t row, uint64_t col,
             uint64_t k) const {
    return lpk::add_rounded<double>(sum, p, f, acc_.rounding,
                                    threshold(acc_.rounding, site, row, col, k));
  }

  lpk::Accumulator acc_;
  uint64_t seed_;
};

enum class Data {
  kPlain,     // 24 random bits around 1
  kShort,     // few bits, as operands of 8-bit formats: products and sums are often ties
  kWide,      // 2^80 apart
  kLarge,     // sums and products overflow every format
  kTiny,      // sums and products underflow every format
  kSpecials,  // one in eight is NaN, infinite, zero of either sign or float32's smallest
};
constexpr Data kAllData[] = {Data::kPlain, Data::kShort, Data::kWide,
                             Data::kLarge, Data::kTiny,  Data::kSpecials};
constexpr const char* kDataNames[] = {"plain", "short", "wide", "large", "tiny", "specials"};

inline float special(Source& source) {
  const float list[] = {0.0f, -0.0f,     0.0f,       -0.0f,      HUGE_VALF,
                        NAN,  0x1p-149f, -HUGE_VALF, -0x1p-149f, 0x1p-126f};
  // Infinities and NaN one time in ten of those, or every sum would end as NaN.
  const float x = list[source.between(0, 9)];
  return std::isfinite(x) || source.once_in(4) ? x : 0.0f;
}

inline float operand(Data data, Source& source) {
  switch (data) {
    case Data::kPlain:
      return source.number(-2, 1);
    case Data::kShort:
      return std::ldexp(static_cast<float>(source.between(-15, 15)), source.between(-6, 1));
    case Data::kWide:
      return source.number(-40, 40);
    case Data::kLarge:
      return source.number(0, source.once_in(3) ? 127 : 20);
    case Data::kTiny:
      return source.number(source.once_in(3) ? -149 : -30, -3);
    case Data::kSpecials:
      return source.once_in(8) ? special(source) : source.number(-3, 3);
  }
  return 0;
}

inline std::vector<float> operands(Data data, Source& source, int64_t count) {
  std::vector<float> result(static_cast<size_t>(count));
  for (float& x : result) x = operand(data, source);
  return result;
}

}  // namespace lpk_test
