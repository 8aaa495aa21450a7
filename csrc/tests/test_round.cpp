// common/round.h against the contract in integers (exact.h).
#include "check.h"
#include "groups.h"
#include "values.h"

namespace lpk_test {
namespace {

// The thresholds of stochastic rounding at both ends, in the middle and at random.
std::vector<Draw> draws_of(Rounding rounding) {
  if (rounding != Rounding::kStochastic) return {{}};
  return {{0, 1},         {1, 1},         {0, 8},  {200, 8},         {255, 8},        {4095, 13},
          {0xffffff, 24}, {0x800000, 24}, {0, 32}, {0x7fffffff, 32}, {0xffffffff, 32}};
}

double rounded(double x, const lpk::Format& f, Rounding rounding, Draw draw) {
  const double threshold =
      rounding == Rounding::kStochastic
          ? lpk::stochastic_threshold<double>(static_cast<double>(draw.value), draw.bits)
          : 0.0;
  return lpk::round_to<double>(x, f, rounding, threshold);
}

std::string where(const NamedFormat& format, Rounding rounding, Draw draw, double x) {
  return text("%s %s draw %u of %d bits, x = %s", format.name, name_of(rounding), draw.value,
              draw.bits, shown(x).c_str());
}

void check_format(const NamedFormat& format) {
  const lpk::Format f = lpk::number_format(format.ints.data());
  const std::vector<double> values = values_of(format.ints);
  const std::vector<double> hard = hard_values(format.ints);
  for (Rounding rounding : kRoundings) {
    for (Draw draw : draws_of(rounding)) {
      if (!taken()) continue;
      for (double x : values) {
        CHECK_SAME(rounded(x, f, rounding, draw), x, where(format, rounding, draw, x));
      }
      for (double x : hard) {
        CHECK_SAME(rounded(x, f, rounding, draw), exact_round(x, format.ints, rounding, draw),
                   where(format, rounding, draw, x));
      }
    }
  }
}

void check_short_nearest_even(const NamedFormat& format) {
  if (format.ints[2] == 0 || has_one_zero(format.ints)) return;
  const lpk::Format f = lpk::number_format(format.ints.data());
  for (const std::vector<double>& list : {values_of(format.ints), hard_values(format.ints)}) {
    for (double x : list) {
      CHECK_SAME(lpk::round_to_float_nearest_even<double>(x, f),
                 lpk::round_to_float<double>(x, f, Rounding::kNearestEven, 0.0),
                 where(format, Rounding::kNearestEven, {}, x));
    }
  }
}

// The rules of the contract that have a number in its text.
void check_pinned_values() {
  const auto nearest = [](const FormatInts& ints, double x) {
    return lpk::round_to<double>(x, lpk::number_format(ints.data()), Rounding::kNearestEven, 0);
  };
  const FormatInts e4m3fn = float_ints(4, 3, {Specials::kFn, Overflow::kNan});
  CHECK(nearest(e4m3fn, 464.0) == 448.0);
  CHECK(std::isnan(nearest(e4m3fn, 464.1)));
  CHECK(nearest(float_ints(5, 10), 65519.9) == 65504.0);
  CHECK(nearest(float_ints(5, 10), 65520.0) == HUGE_VAL);
  CHECK(std::signbit(nearest(float_ints(6, 9), -0x1p-200)));
  CHECK(!std::signbit(nearest(fixed_ints(8, 4), -0x1p-200)));
  CHECK(nearest(fixed_ints(8, 4, true), 8.0) == -8.0);
  CHECK(lpk::moderated(0x1p-1000) == 0x1p-400 && lpk::moderated(-0x1p1000) == -0x1p300);
  CHECK(lpk::moderated(HUGE_VAL) == HUGE_VAL && std::signbit(lpk::moderated(-0.0)));
}

}  // namespace

void test_round() {
  check_pinned_values();
  for (const auto& list :
       {narrow_float_formats(), wide_float_formats(), fixed_formats(), table_formats()}) {
    for (const NamedFormat& format : list) check_format(format);
  }
  for (const auto& list : {narrow_float_formats(), wide_float_formats()}) {
    for (const NamedFormat& format : list) check_short_nearest_even(format);
  }
}

}  // namespace lpk_test
