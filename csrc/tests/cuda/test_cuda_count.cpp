// How csrc/cuda counts an element, on the host, against csrc/cpu.
#include "cpu/elementwise/quantize.h"
#include "cuda/elementwise/count_map.h"
#include "tests/check.h"
#include "tests/groups.h"
#include "tests/values.h"

namespace lpk_test {
namespace {

constexpr uint64_t kSeed = 0x9e3779b97f4a7c15;
constexpr int kBits = 11;
constexpr int kPlaces = lpk::kCounts + lpk::kBins;

using Places = std::vector<int64_t>;

// The counts of float and fixed formats; x must be what rounding sees.
Places counted_here(const std::vector<double>& x, const lpk::Format& f, Rounding rounding) {
  Places places(kPlaces, 0);
  for (size_t i = 0; i < x.size(); ++i) {
    double threshold = 0;
    if (rounding == Rounding::kStochastic) {
      const uint32_t draw =
          lpk::random_draw(lpk::Rng::kFast, kSeed, lpk::kSiteQuantize, 0, 0, i, kBits);
      threshold = lpk::stochastic_threshold<double>(draw, kBits);
    }
    const double value = lpk::moderated(x[i]);
    const uint32_t counted =
        lpk::cuda::counted_as(value, lpk::cuda::overflows(value, f, rounding, threshold),
                              lpk::round_to<double>(value, f, rounding, threshold));
    for (int place = 0; place < lpk::kCounts; ++place) places[place] += counted >> place & 1;
    ++places[lpk::kCounts + lpk::exponent_bin(value)];
  }
  return places;
}

Places counted_by_cpu(const std::vector<double>& x, const int64_t* format, Rounding rounding) {
  Places places(kPlaces, 0);
  lpk::QuantizeArgs args{};
  args.x = x.data();
  args.x_type = lpk::ElementType::kFloat64;
  args.count = static_cast<int64_t>(x.size());
  args.outer = args.inner = 1, args.length = args.count;
  args.format = format;
  args.rounding = static_cast<int64_t>(rounding);
  args.random_bits = kBits;
  args.seed = kSeed;
  args.site = lpk::kSiteQuantize;
  args.threads = 2;
  args.counts = places.data();
  args.histogram = true;
  lpk::quantize_elements(args);
  return places;
}

}  // namespace

void test_cuda_count() {
  Source source(11);
  std::vector<double> x;
  for (int i = 0; i < 3000; ++i) x.push_back(source.number(-40, 40));
  for (double special : {0.0, -0.0, HUGE_VAL, -HUGE_VAL, double(NAN), 0x1p-1074, 0x1p1000})
    x.push_back(special);
  const FormatInts formats[] = {float_ints(5, 2),
                                float_ints(4, 3, {Specials::kFn, Overflow::kNan}),
                                float_ints(2, 1, {Specials::kNone, Overflow::kSaturate}),
                                float_ints(4, 0),
                                float_ints(8, 23),
                                FormatInts{1, 8, 4, 1, 0},
                                FormatInts{1, 8, 4, 1, 1},
                                FormatInts{1, 5, -3, 0, 0}};
  for (const FormatInts& format : formats) {
    for (int mode = 0; mode <= static_cast<int>(Rounding::kStochastic); ++mode) {
      const auto rounding = static_cast<Rounding>(mode);
      const Places here = counted_here(x, lpk::number_format(format.data()), rounding);
      const Places there = counted_by_cpu(x, format.data(), rounding);
      for (int i = 0; i < kPlaces; ++i)
        CHECK_SAME(here[i], there[i],
                   text("%d %d mode %d, place %d", int(format[0]), int(format[1]), mode, i));
    }
  }
  const lpk::AffineCodes codes(FormatInts{2, 4, 0}.data()), symmetric(FormatInts{2, 4, 1}.data());
  CHECK(lpk::cuda::outside(1.5, -2, 1, codes) && !lpk::cuda::outside(1.5, -2, 1, symmetric));
  CHECK(!lpk::cuda::outside(1.5, NAN, NAN, codes) && !lpk::cuda::outside(NAN, -2, 1, codes));
  // A zero outside of a range counts as both.
  CHECK(lpk::cuda::counted_as(0.0, true, 1.0) == (1u << lpk::kOverflows | 1u << lpk::kZeros));
  CHECK(lpk::cuda::counted_as(-0.0, false, 0.0) == 1u << lpk::kZeros);
}

}  // namespace lpk_test
