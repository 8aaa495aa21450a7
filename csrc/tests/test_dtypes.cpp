// cpu/drivers/element_types.h: every half and bfloat16 pattern, widened and narrowed again.
#include "check.h"
#include "cpu/drivers/element_types.h"
#include "groups.h"
#include "values.h"

namespace lpk_test {
namespace {

using lpk::ElementType;

// The value of a 16-bit pattern with `man_bits` mantissa bits, NaN for each of its NaNs.
double value_of(uint16_t pattern, const FormatInts& f) {
  const int64_t code = pattern & 0x7fff;
  const int64_t top = ((int64_t{1} << f[1]) - 1) << f[2];
  if (code > top) return std::nan("");
  const double a = code == top ? HUGE_VAL : float_of_code(f, code);
  return (pattern & 0x8000) != 0 ? -a : a;
}

void check_patterns(ElementType type, const FormatInts& f, uint16_t canonical_nan,
                    const char* name) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto pattern = static_cast<uint16_t>(i);
    const double want = value_of(pattern, f);
    const double got = lpk::widen_one(&pattern, type, 0);
    CHECK_SAME(got, want, text("%s 0x%04x", name, i));
    uint16_t back = 0;
    lpk::narrow(&got, type, 0, 1, &back);
    const uint16_t again = want == want ? pattern : canonical_nan;
    CHECK_SAME(back, again, text("%s 0x%04x narrowed", name, i));
  }
}

void check_wide() {
  const float floats[] = {0.0f, -0.0f, 0x1p-149f, -0x1.fffffep127f, HUGE_VALF, -NAN};
  for (float x : floats) {
    const double wide = lpk::widen_one(&x, ElementType::kFloat32, 0);
    CHECK_SAME(wide, static_cast<double>(x), std::string("float32"));
    float back = 1;
    lpk::narrow(&wide, ElementType::kFloat32, 0, 1, &back);
    CHECK_SAME(back, x == x ? x : lpk::float_of_bits(0x7fc00000u), std::string("float32"));
  }
  const double doubles[] = {0.0,       -0.0,         0x1p-1074, -0x1.fffffffffffffp1023,
                            -HUGE_VAL, -std::nan("")};
  for (double x : doubles) {
    double back = 1;
    lpk::narrow(&x, ElementType::kFloat64, 0, 1, &back);
    CHECK_SAME(back, x, std::string("float64"));
    CHECK(x == x || !std::signbit(back));
    CHECK_SAME(lpk::widen_one(&x, ElementType::kFloat64, 0), x, std::string("float64"));
  }
}

}  // namespace

void test_dtypes() {
  check_patterns(ElementType::kFloat16, float_ints(5, 10), 0x7e00, "float16");
  check_patterns(ElementType::kBfloat16, float_ints(8, 7), 0x7fc0, "bfloat16");
  check_wide();
}

}  // namespace lpk_test
