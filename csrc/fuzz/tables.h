// Tables of the cases, which the kernels know by handles from kFirstHandle on, and rounding to them
// by comparing with values and boundaries.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "specs.h"

namespace lpk_fuzz {

struct Table {
  const char* name;
  std::vector<double> values;      // ascending
  std::vector<double> boundaries;  // one for each gap
  std::vector<int32_t> codes;
  int64_t nan_code = -1;
  bool infinity_is_nan = false;
};

// The number of the largest value that is not above x, which is not below all of them.
// compare(v): the sign of x - v.
template <class Compare>
size_t below(const Table& t, const Compare& compare) {
  const auto above = std::partition_point(t.values.begin() + 1, t.values.end(),
                                          [&](double v) { return compare(v) >= 0; });
  return static_cast<size_t>(above - t.values.begin()) - 1;
}

// x in a mode that draws nothing.
template <class Compare>
double rounded_to_table(const Table& t, Rounding rounding, const Compare& compare) {
  if (compare(t.values.front()) <= 0) return t.values.front();
  const size_t i = below(t, compare);
  const double low = t.values[i];
  if (compare(low) == 0 || i + 1 == t.values.size()) return low;
  const double high = t.values[i + 1], near = low >= 0 ? low : high, far = low >= 0 ? high : low;
  const bool low_is_odd = t.codes[i] % 2 != 0, high_is_odd = t.codes[i + 1] % 2 != 0;
  const double odd = low_is_odd == high_is_odd ? far : low_is_odd ? low : high;
  const int side = compare(t.boundaries[i]);
  switch (rounding) {
    case Rounding::kNearestEven:
      return side != 0 ? (side < 0 ? low : high) : odd == low ? high : low;
    case Rounding::kNearestAway:
      return side != 0 ? (side < 0 ? low : high) : far;
    case Rounding::kTowardPositive:
      return high;
    case Rounding::kTowardNegative:
      return low;
    case Rounding::kToOdd:
      return odd;
    default:
      return near;
  }
}

// The smallest double that a mode takes to the upper value of a gap. Behind 0 kernels see no
// magnitude below 2^-400.
inline double threshold_of(const Table& t, Rounding rounding, size_t gap) {
  const double low = t.values[gap], high = t.values[gap + 1], boundary = t.boundaries[gap];
  const auto behind = [](double x) { return x == 0 ? 0x1p-1000 : std::nextafter(x, HUGE_VAL); };
  for (double x : {behind(low), boundary, behind(boundary)}) {
    const auto compare = [&](double v) { return (x > v) - (x < v); };
    if (x > low && x < high && rounded_to_table(t, rounding, compare) == high) return x;
  }
  return high;
}

// The posits of n bits by the formula of the Posit Standard (2022), section 3.3.
inline double posit_value(int code, int n, int es) {
  const int s = code >> (n - 1) & 1, first = code >> (n - 2) & 1;
  int k = 0, at = n - 2;
  while (at >= 0 && (code >> at & 1) == first) ++k, --at;
  --at;
  int e = 0;
  for (int i = 0; i < es; ++i, --at) e = 2 * e + (at >= 0 ? code >> at & 1 : 0);
  double f = 0;
  for (double place = 0.5; at >= 0; --at, place /= 2) f += (code >> at & 1) != 0 ? place : 0;
  const int r = first != 0 ? k - 1 : -k;
  return std::ldexp(1 - 3 * s + f, (1 - 2 * s) * (r * (1 << es) + e + s));
}

// The boundary of two neighbours is the posit of n + 1 bits between them; 0 is apart.
inline Table posit_table(const char* name, int n, int es) {
  Table t{name, {}, {}, {}, 1 << (n - 1), true};
  for (int i = 1; i < 1 << n; ++i) {
    const int code = ((1 << (n - 1)) + i) % (1 << n), next = (code + 1) % (1 << n);
    t.values.push_back(code == 0 ? 0 : posit_value(code, n, es));
    t.codes.push_back(code);
    const bool at_zero = code == 0 || next == 0;
    if (i + 1 < 1 << n) t.boundaries.push_back(at_zero ? 0 : posit_value(2 * code + 1, n + 1, es));
  }
  return t;
}

// Boundaries are midpoints, and codes are 0, 1, ..., unless others are given.
inline Table plain_table(const char* name, std::vector<double> values,
                         std::vector<int32_t> codes = {}) {
  Table t{name, std::move(values), {}, std::move(codes), 1000};
  for (size_t i = 0; i + 1 < t.values.size(); ++i)
    t.boundaries.push_back((t.values[i] + t.values[i + 1]) / 2);
  for (size_t i = t.codes.size(); i < t.values.size(); ++i)
    t.codes.push_back(static_cast<int32_t>(i));
  return t;
}

constexpr int64_t kFirstHandle = 1000;

inline FormatInts ints_of(const Table& t, int64_t handle) {
  int64_t last = t.nan_code, bits = 1;
  for (int32_t code : t.codes) last = std::max<int64_t>(last, code);
  while (last >> bits != 0) ++bits;
  return {4, handle, bits, static_cast<int64_t>(t.values.size()), t.infinity_is_nan, t.nan_code};
}

inline std::vector<Table> all_tables() {
  std::vector<double> powers, close = {-1, 0}, many;
  for (int i = -15; i <= 15; ++i) {
    const double size = static_cast<float>(std::exp2((std::abs(i) - 8) / 2.0));
    powers.push_back(i == 0 ? 0 : std::copysign(size, i));
  }
  for (int i = 0; i < 9; ++i) close.push_back(1 + std::ldexp(i, -23));
  close.insert(close.end(), {1.5, 3});
  // Three negative and eight positive values in each binade.
  for (int i = 90; i >= 0; --i) many.push_back(-std::ldexp(1 + i % 3 / 3.0f, i / 3 - 12));
  many.push_back(0);
  for (int i = 0; i < 300; ++i) many.push_back(std::ldexp(1 + i % 8 / 9.0f, i / 8 - 20));
  std::vector<Table> all = {
      posit_table("posit6es1", 6, 1),
      posit_table("posit8es2", 8, 2),
      plain_table("nf4", {-1.0f, -0.6961928f, -0.5250731f, -0.3949175f, -0.28444138f, -0.18477343f,
                          -0.09105004f, 0.0f, 0.0795803f, 0.1609302f, 0.2461123f, 0.33791524f,
                          0.44070983f, 0.562617f, 0.72295684f, 1.0f}),
      plain_table("powers", powers),
      // Codes without an order, subnormals, an infinity that becomes NaN.
      plain_table("gaps",
                  {-7, -3.3f, -1, -0x1p-30, 0, 0x1p-149, 0x1p-120, 0x1p-75, 0x1p-27, 0.5, 0.75, 9},
                  {3, 1, 4, 15, 9, 2, 6, 5, 13, 8, 7, 0}),
      plain_table("given", {-2, -1, 0, 1, 2}),
      plain_table("positive", {0, 0.1f, 0.25, 1, 3}),
      // Several thresholds in one cell of an index.
      plain_table("close", close),
      plain_table("many", many),
  };
  all[2].nan_code = -1;
  all[4].infinity_is_nan = true;
  all[5].boundaries = {-2, 0, 0, 1.25};
  return all;
}

// All tables; the first call makes them known to the kernels.
inline const std::vector<Table>& tables() {
  static const std::vector<Table> all = [] {
    std::vector<Table> tables = all_tables();
    int64_t handle = kFirstHandle;
    for (const Table& t : tables) {
      std::vector<double> ladders;
      for (int mode = 0; mode < lpk::kLadders; ++mode) {
        for (size_t gap = 0; gap + 1 < t.values.size(); ++gap)
          ladders.push_back(threshold_of(t, kRoundings[mode], gap));
      }
      const FormatInts ints = ints_of(t, handle);
      lpk::add_table(handle++, {ints[3], t.values.data(), t.codes.data(), ladders.data(),
                                static_cast<int>(ints[2]), t.nan_code, t.infinity_is_nan});
    }
    return tables;
  }();
  return all;
}

inline std::vector<NamedFormat> table_formats() {
  std::vector<NamedFormat> all;
  for (const Table& t : tables())
    all.push_back({t.name, ints_of(t, kFirstHandle + static_cast<int64_t>(all.size()))});
  return all;
}

// Sums with tables at every place: modes, chunks, orders.
inline std::vector<AccumulatorSpec> table_accumulators() {
  const std::vector<NamedFormat> t = table_formats();
  const FormatInts posit6 = t[0].ints, posit8 = t[1].ints, nf4 = t[2].ints, powers = t[3].ints;
  const FormatInts gaps = t[4].ints, positive = t[6].ints, many = t[8].ints;
  const FormatInts fp32 = float_ints(8, 23), e5m4 = float_ints(5, 4);
  const FormatInts k8p3_unsigned =
      float_ints(6, 2, {Specials::kP3109, Overflow::kInfinity, true, -1000, true});
  const Rounding away = Rounding::kNearestAway, zero = Rounding::kTowardZero;
  const Rounding up = Rounding::kTowardPositive, down = Rounding::kTowardNegative;
  const Rounding odd = Rounding::kToOdd, stochastic = Rounding::kStochastic;
  using A = AccumulatorSpec;
  return {
      A{"posit8es2", posit8},
      A{"many nearest_away", many, away},
      A{"gaps toward_positive, product many", gaps, up}.with_product(many, down),
      A{"posit6es1 to_odd, product nf4 toward_zero", posit6, odd}.with_product(nf4, zero),
      A{"powers toward_negative, chunk 5, outer posit8es2", powers, down}.chunked(5, posit8),
      A{"positive, chunk 4, outer p3109_k8p3ue", positive}.chunked(4, k8p3_unsigned),
      A{"p3109_k8p3ue, product powers, chunk 3", k8p3_unsigned}.with_product(powers).chunked(3),
      A{"fp32, product posit8es2, chunk 64, outer many", fp32}.with_product(posit8).chunked(64,
                                                                                            many),
      A{"e5m4 stochastic, product gaps stochastic, chunk 4, outer powers", e5m4, stochastic}
          .with_product(gaps, stochastic)
          .chunked(4, powers)
          .drawing(13),
      A{"many stochastic, chunk 7, outer fp32", many, stochastic}.chunked(7, fp32).drawing(
          24, lpk::Rng::kPhilox),
      A{"posit8es2 pairwise", posit8}.ordered(lpk::Order::kPairwise),
      A{"powers stochastic pairwise, chunk 11", powers, stochastic}
          .ordered(lpk::Order::kPairwise)
          .chunked(11),
      A{"many toward_negative compensated", many, down}.ordered(lpk::Order::kCompensated),
      A{"posit8es2, blocks of 4, product e5m4", posit8}.aligned(4, 9).with_product(e5m4),
      A{"e5m4, blocks of 8, chunk 20, outer nf4 to_odd", e5m4}
          .aligned(8, 20)
          .chunked(20, nf4)
          .outer_rounded(odd),
  };
}

}  // namespace lpk_fuzz
