// Tables on the chosen instruction set against values that are looked up (tables.h): rounding,
// codes, and sums.
#include <algorithm>
#include <limits>

#include "check.h"
#include "cpu/elementwise/pack.h"
#include "cpu/elementwise/quantize.h"
#include "groups.h"
#include "matmul_check.h"

namespace lpk_test {
namespace {

using lpk::ElementType;

constexpr uint64_t kSeed = 0x9e3779b97f4a7c15;

Draw draw_of(Rounding rounding, lpk::Rng rng, int bits, uint32_t site, uint64_t row, uint64_t col,
             uint64_t k) {
  if (rounding != Rounding::kStochastic) return {0, bits};
  return {lpk::random_draw(rng, kSeed, site, row, col, k, bits), bits};
}

template <class T>
void check_quantized(const NamedFormat& format, Rounding rounding, int bits) {
  std::vector<T> x;
  for (double value : hard_values(format.ints)) {
    const auto near = static_cast<T>(value);
    x.push_back(near);
    if (sizeof(T) == sizeof(double) || !std::isfinite(near)) continue;
    x.push_back(std::nextafter(near, -std::numeric_limits<T>::infinity()));
    x.push_back(std::nextafter(near, std::numeric_limits<T>::infinity()));
  }
  std::vector<T> y(x.size(), 77);
  lpk::QuantizeArgs args{};
  args.x = x.data();
  args.y = y.data();
  args.x_type = args.y_type = sizeof(T) == 4 ? ElementType::kFloat32 : ElementType::kFloat64;
  args.count = args.length = static_cast<int64_t>(x.size());
  args.outer = args.inner = 1;
  args.format = format.ints.data();
  args.rounding = static_cast<int64_t>(rounding);
  args.random_bits = bits;
  args.seed = kSeed;
  args.site = lpk::kSiteQuantize;
  args.threads = 2;
  lpk::quantize_elements(args);
  for (size_t i = 0; i < x.size(); ++i) {
    const Draw draw = draw_of(rounding, lpk::Rng::kFast, bits, lpk::kSiteQuantize, 0, 0, i);
    const double want = exact_round(static_cast<double>(x[i]), format.ints, rounding, draw);
    CHECK_SAME(static_cast<double>(y[i]), want,
               text("%s %s %d bits, element %d, x = %s", format.name, name_of(rounding), bits,
                    int(i), shown(x[i]).c_str()));
  }
}

void check_codes(const NamedFormat& format) {
  const TestTable& t = table_of(format.ints);
  const int bits = static_cast<int>(format.ints[2]);
  const lpk::PackArgs one{format.ints.data(), 1, {}, 1};
  const auto code_of = [&](float x) {
    uint8_t bytes[4] = {};
    const int64_t refused = lpk::pack(one, &x, bytes);
    uint32_t code;
    std::memcpy(&code, bytes, sizeof code);
    return refused < 0 ? static_cast<int64_t>(code) : -1;
  };
  for (size_t i = 0; i < t.values.size(); ++i) {
    CHECK_SAME(code_of(static_cast<float>(t.values[i])), int64_t{t.codes[i]},
               text("%s, code of value %d", format.name, int(i)));
    const auto between = static_cast<float>(t.values[i] + t.values[std::max<size_t>(i, 1) - 1]) / 2;
    const bool is_value = std::count(t.values.begin(), t.values.end(), between) > 0;
    CHECK(is_value || code_of(between) < 0);
  }
  CHECK_SAME(code_of(NAN), t.nan_code, std::string(format.name));
  CHECK(code_of(HUGE_VALF) < 0);
  for (int code = 0; code < 1 << bits; ++code) {
    uint8_t bytes[4] = {};
    std::memcpy(bytes, &code, sizeof code);
    float x = 77;
    lpk::unpack(one, bytes, &x);
    const auto at = std::find(t.codes.begin(), t.codes.end(), code);
    const float want = at == t.codes.end() ? lpk::canonical_nan()
                                           : static_cast<float>(t.values[at - t.codes.begin()]);
    CHECK_SAME(x, want, text("%s, value of code %d", format.name, code));
  }
}

// A sum in sequence, each rounding by exact.h.
float exact_sum(const AccumulatorSpec& spec, const float* a, const float* b, int64_t length,
                int64_t b_stride, uint64_t row, uint64_t col) {
  const auto draw = [&](Rounding rounding, uint32_t site, int64_t k) {
    return draw_of(rounding, spec.rng, spec.random_bits, site, row, col, static_cast<uint64_t>(k));
  };
  const Rounding outer = spec.has_outer_rounding ? spec.outer_rounding : spec.rounding;
  const int64_t chunk = spec.chunk > 0 ? spec.chunk : length;
  double total = 0, inner = 0;
  for (int64_t k = 0; k < length; ++k) {
    double p = static_cast<double>(a[k]) * static_cast<double>(b[k * b_stride]);
    const Rounding how = spec.product_rounding;
    if (spec.has_product) p = exact_round(p, spec.product, how, draw(how, lpk::kSiteProduct, k));
    inner = exact_add(inner, p, spec.fmt, spec.rounding, draw(spec.rounding, lpk::kSiteSum, k));
    if ((k + 1) % chunk != 0 && k + 1 != length) continue;
    if (spec.chunk > 0)
      total = exact_add(total, inner, spec.has_outer ? spec.outer : spec.fmt, outer,
                        draw(outer, lpk::kSiteOuter, k / chunk));
    else
      total = inner;
    inner = 0;
  }
  return lpk::canonical_float(total);
}

void check_exact_sums(const AccumulatorSpec& spec, Data data) {
  constexpr int64_t kM = 3, kK = 29, kN = 35;
  Source source(static_cast<uint64_t>(data));
  const std::vector<float> a = operands(data, source, kM * kK), b = operands(data, source, kK * kN);
  std::vector<float> got(kM * kN);
  const int64_t offset = 0;
  const lpk::MatmulArgs args{a.data(), b.data(), nullptr, got.data(), 1, kM, kN,
                             kK,       &offset,  &offset, kK,         1, kN, 1};
  lpk::matmul(args, {spec.ints().data()}, kSeed, 1);
  for (int64_t i = 0; i < kM * kN; ++i) {
    const auto row = static_cast<uint64_t>(i / kN), col = static_cast<uint64_t>(i % kN);
    CHECK_SAME(got[i], exact_sum(spec, &a[i / kN * kK], &b[i % kN], kK, kN, row, col),
               text("%s, %s data, element %d", spec.name.c_str(),
                    kDataNames[static_cast<int>(data)], int(i)));
  }
}

}  // namespace

void test_tables() {
  for (const NamedFormat& format : table_formats()) {
    for (Rounding rounding : kRoundings) {
      const bool draws = rounding == Rounding::kStochastic;
      for (int bits : draws ? std::vector<int>{9, 32} : std::vector<int>{32}) {
        check_quantized<float>(format, rounding, bits);
        check_quantized<double>(format, rounding, bits);
      }
    }
    check_codes(format);
  }
  const Layout rows = Layout::kRows, columns = Layout::kColumns;
  for (const AccumulatorSpec& spec : table_accumulators()) {
    for (Data data : kAllData) {
      if (!taken()) continue;
      const bool in_sequence = spec.order == lpk::Order::kSequential && spec.block == 0;
      if (in_sequence) check_exact_sums(spec, data);
      check_matmul(spec, {{1, 5, 17, 3}, data, rows, columns, true, false, 1}, Source(1));
      check_matmul(spec, {{2, 9, 65, 20}, data, columns, rows, false, true, 2}, Source(2));
    }
  }
}

}  // namespace lpk_test
