// quantize_elements of the chosen instruction set against round_to<double>, element by element;
// block formats against their definition.
#include "check.h"
#include "cpu/elementwise/quantize.h"
#include "groups.h"
#include "values.h"

namespace lpk_test {
namespace {

using lpk::ElementType;

constexpr uint64_t kSeed = 0x9e3779b97f4a7c15;

struct Job {
  Rounding rounding = Rounding::kNearestEven;
  int random_bits = 32;
  lpk::Rng rng = lpk::Rng::kFast;
  int threads = 1;

  double threshold(uint64_t index) const {
    if (rounding != Rounding::kStochastic) return 0;
    const uint32_t draw =
        lpk::random_draw(rng, kSeed, lpk::kSiteQuantize, 0, 0, index, random_bits);
    return lpk::stochastic_threshold<double>(draw, random_bits);
  }
};

lpk::QuantizeArgs arguments(const Job& job, const int64_t* format, const void* x, ElementType from,
                            void* y, ElementType to, int64_t count) {
  lpk::QuantizeArgs args{};
  args.x = x;
  args.y = y;
  args.x_type = from;
  args.y_type = to;
  args.count = count;
  args.outer = 1;
  args.length = count;
  args.inner = 1;
  args.format = format;
  args.rounding = static_cast<int64_t>(job.rounding);
  args.random_bits = job.random_bits;
  args.rng = static_cast<int64_t>(job.rng);
  args.seed = kSeed;
  args.site = lpk::kSiteQuantize;
  args.threads = job.threads;
  return args;
}

void check_doubles(const NamedFormat& format, const Job& job, const std::vector<double>& x) {
  const lpk::Format f = lpk::number_format(format.ints.data());
  std::vector<double> y(x.size(), 1.0);
  lpk::quantize_elements(arguments(job, format.ints.data(), x.data(), ElementType::kFloat64,
                                   y.data(), ElementType::kFloat64,
                                   static_cast<int64_t>(x.size())));
  for (size_t i = 0; i < x.size(); ++i) {
    CHECK_SAME(y[i], lpk::round_to<double>(lpk::moderated(x[i]), f, job.rounding, job.threshold(i)),
               text("%s %s %d bits, element %d, x = %s", format.name, name_of(job.rounding),
                    job.random_bits, int(i), shown(x[i]).c_str()));
  }
}

// float32 goes in, and the results of every element type come out.
void check_floats(const NamedFormat& format, const Job& job, int64_t count) {
  const lpk::Format f = lpk::number_format(format.ints.data());
  Source source(static_cast<uint64_t>(count));
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = lpk::float_of_bits(static_cast<uint32_t>(source.next() >> 32));
  std::vector<float> y(x.size());
  lpk::quantize_elements(arguments(job, format.ints.data(), x.data(), ElementType::kFloat32,
                                   y.data(), ElementType::kFloat32, count));
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = lpk::round_to<double>(x[i], f, job.rounding, job.threshold(i));
    CHECK_SAME(y[i], lpk::canonical_float(value),
               text("%s %s %d bits %s, element %d of %d", format.name, name_of(job.rounding),
                    job.random_bits, job.rng == lpk::Rng::kPhilox ? "philox" : "fast", int(i),
                    int(count)));
  }
}

// All patterns of a 16-bit type are rounded to formats that the type holds.
void check_halves(ElementType type, const NamedFormat& format, const Job& job) {
  const lpk::Format f = lpk::number_format(format.ints.data());
  std::vector<uint16_t> x(0x10000), y(0x10000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  lpk::quantize_elements(
      arguments(job, format.ints.data(), x.data(), type, y.data(), type, 0x10000));
  for (size_t i = 0; i < x.size(); ++i) {
    const double value =
        lpk::round_to<double>(lpk::widen_one(&x[i], type, 0), f, job.rounding, job.threshold(i));
    uint16_t want;
    lpk::narrow(&value, type, 0, 1, &want);
    CHECK_SAME(y[i], want, text("%s %s, pattern %d", format.name, name_of(job.rounding), int(i)));
  }
}

// X = clamp(floor(log2 max|x|) - emax), then each element of x / 2^X rounded, saturating.
void check_blocks(Rounding rounding, int64_t size, int64_t outer_size, int64_t length,
                  int64_t inner_size) {
  const FormatInts element = float_ints(4, 3, {Specials::kFn, Overflow::kNan});
  FormatInts saturating = element;
  saturating[6] = static_cast<int64_t>(Overflow::kSaturate);
  int64_t format[2 * lpk::kFormatInts] = {3, size, 1};
  std::copy(element.begin(), element.end(), format + lpk::kFormatInts);
  Source source(3);
  std::vector<float> x(outer_size * length * inner_size), y(x.size());
  for (float& value : x) value = source.once_in(9) ? -0.0f : source.number(-140, 120);
  x[7] = HUGE_VALF;
  x[101] = NAN;
  Job job{rounding, 11};
  lpk::QuantizeArgs args = arguments(job, format, x.data(), ElementType::kFloat32, y.data(),
                                     ElementType::kFloat32, static_cast<int64_t>(x.size()));
  args.grid = {outer_size, length, inner_size, std::min(size, length), 1};
  lpk::quantize_blocks(args);
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t outer = i / (length * inner_size), at = i / inner_size % length;
    const int64_t inner = i % inner_size, first = at / size * size;
    float largest = 0;
    bool finite = true;
    for (int64_t j = first; j < std::min(first + size, length); ++j) {
      const float a = std::fabs(x[(outer * length + j) * inner_size + inner]);
      finite &= std::isfinite(a);
      largest = std::max(largest, a);
    }
    const int scale = largest == 0 ? -127 : std::min(std::max(std::ilogb(largest) - 8, -127), 127);
    const double scaled = std::ldexp(static_cast<double>(x[i]), -scale);
    const Draw draw{lpk::random_draw(job.rng, kSeed, lpk::kSiteQuantize, 0, 0,
                                     static_cast<uint64_t>(i), job.random_bits),
                    job.random_bits};
    const double value = std::ldexp(exact_round(scaled, saturating, rounding, draw), scale);
    CHECK_SAME(y[i], lpk::canonical_float(finite ? value : std::nan("")),
               text("block of %d %s, element %d", int(size), name_of(rounding), int(i)));
  }
}

}  // namespace

void test_quantize() {
  const lpk::Rng philox = lpk::Rng::kPhilox;
  for (const auto& list : {narrow_float_formats(), wide_float_formats(), fixed_formats()}) {
    for (const NamedFormat& format : list) {
      std::vector<double> x = hard_values(format.ints);
      for (double extreme : {0x1p-1074, -0x1p-500, 0x1p1023, -0x1p300}) x.push_back(extreme);
      for (Rounding rounding : kRoundings) check_doubles(format, {rounding, 12}, x);
    }
  }
  const NamedFormat e5m2{"e5m2", float_ints(5, 2)};
  for (int64_t count : {1, 2, 7, 8, 9, 33, 1025}) {
    for (int bits : {1, 3, 8, 9, 16, 17, 24, 32}) {
      check_floats(e5m2, {Rounding::kStochastic, bits}, count);
      check_floats(e5m2, {Rounding::kStochastic, bits, philox}, count);
    }
    check_floats(e5m2, {}, count);
  }
  check_floats(e5m2, {Rounding::kStochastic, 16, lpk::Rng::kFast, 3}, 200001);
  check_floats(e5m2, {Rounding::kNearestEven, 32, lpk::Rng::kFast, 3}, 200001);
  for (Rounding rounding : kRoundings) {
    check_halves(ElementType::kFloat16, {"e4m3", float_ints(4, 3)}, {rounding});
    check_halves(ElementType::kBfloat16, {"e5m2", float_ints(5, 2)}, {rounding});
    check_blocks(rounding, 4, 3, 10, 5);
  }
  // Blocks that are read in several spans: infinities and NaN lie in the first of them.
  check_blocks(Rounding::kStochastic, 1500, 1, 2000, 1);
  check_blocks(Rounding::kStochastic, 1500, 1, 1600, 2);
}

}  // namespace lpk_test
