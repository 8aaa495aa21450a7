// common/accumulate.h against exact sums (exact.h): one rounding, whatever the addends.
#include "check.h"
#include "groups.h"
#include "values.h"

namespace lpk_test {
namespace {

// Addends that make trouble together: close, far apart, cancelling, ties, zeros, specials.
std::vector<double> products(Source& source, const std::vector<double>& values, double acc) {
  std::vector<double> p = {0.0, -0.0, -acc, HUGE_VAL, -HUGE_VAL, std::nan("")};
  for (int i = 0; i < 12; ++i) {
    const double near = values[source.next() % values.size()];
    p.push_back(near);
    p.push_back(near * 0.5);
    p.push_back(near * source.number(-2, 1));
    p.push_back(near * std::ldexp(source.number(0, 0), -source.between(20, 80)));
    p.push_back(static_cast<double>(source.number(-100, 100)) * source.number(-40, 20));
    p.push_back(static_cast<double>(source.number(-149, -60)) * source.number(-149, 0));
  }
  p.push_back(static_cast<double>(source.number(127, 127)) * source.number(127, 127));
  return p;
}

void check_format(const NamedFormat& format, bool has_infinity) {
  const lpk::Format f = lpk::number_format(format.ints.data());
  const std::vector<double> values = values_of(format.ints);
  Source source(static_cast<uint64_t>(format.ints[1] * 64 + format.ints[2]));
  for (int i = 0; i < 60; ++i) {
    double acc = values[source.next() % values.size()];
    if (has_infinity && i == 0) acc = HUGE_VAL;
    for (double p : products(source, values, acc)) {
      for (Rounding rounding : kRoundings) {
        Draw draw{0, 8};
        double threshold = 0;
        if (rounding == Rounding::kStochastic) {
          draw.bits = source.between(1, 24);
          draw.value = static_cast<uint32_t>(source.next() >> 32) >> (32 - draw.bits);
          threshold = lpk::stochastic_threshold<double>(draw.value, draw.bits);
        }
        CHECK_SAME(lpk::add_rounded<double>(acc, p, f, rounding, threshold),
                   exact_add(acc, p, format.ints, rounding, draw),
                   text("%s %s draw %u of %d bits, %a + %a", format.name, name_of(rounding),
                        draw.value, draw.bits, acc, p));
      }
    }
  }
}

}  // namespace

void test_add() {
  for (const auto& list : {narrow_float_formats(), wide_float_formats()}) {
    for (const NamedFormat& format : list) {
      check_format(format, format.ints[6] == static_cast<int64_t>(Overflow::kInfinity));
    }
  }
  for (const auto& list : {fixed_formats(), table_formats()}) {
    for (const NamedFormat& format : list) check_format(format, false);
  }
  CHECK_SAME(lpk::canonical_float(-std::nan("")), lpk::float_of_bits(0x7fc00000u),
             std::string("NaN"));
}

}  // namespace lpk_test
