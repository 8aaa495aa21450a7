// Numbers where rounding goes wrong first, and random ones, the same on every run.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/drivers/element_types.h"
#include "exact.h"

namespace lpk_test {

// The generator of the tests' data. It gives the bytes that it was given while there are some, then
// those of xorshift64*, which has nothing to do with the kernels' draws.
class Source {
 public:
  explicit Source(uint64_t seed) : state_(seed * 2 + 1) {}
  Source(const uint8_t* bytes, size_t count) : Source(count) {
    bytes_ = bytes;
    left_ = count;
  }
  uint64_t next() {
    if (left_ >= sizeof(uint32_t)) {
      uint32_t word;
      std::memcpy(&word, bytes_, sizeof word);
      bytes_ += sizeof word;
      left_ -= sizeof word;
      state_ += word;
      return static_cast<uint64_t>(word) << 32;
    }
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1D;
  }
  int between(int low, int high) {
    return low + static_cast<int>((next() >> 33) % static_cast<uint64_t>(high - low + 1));
  }
  bool once_in(int n) { return between(1, n) == 1; }
  // 24 random significant bits, exponents low .. high.
  float number(int low, int high) {
    const auto digits = static_cast<float>((next() >> 40) | 0x800000);
    const float a = std::ldexp(digits, between(low, high) - 23);
    return once_in(2) ? -a : a;
  }

 private:
  uint64_t state_;
  const uint8_t* bytes_ = nullptr;
  size_t left_ = 0;
};

// The magnitude of a positive code of a float format.
inline double float_of_code(const FormatInts& f, int64_t code) {
  const int man_bits = static_cast<int>(f[2]);
  const int64_t exponent = code >> man_bits;
  const int64_t mantissa = code & ((int64_t{1} << man_bits) - 1);
  const int64_t hidden = exponent > 0 ? int64_t{1} << man_bits : 0;
  const int e = static_cast<int>(std::max<int64_t>(exponent, 1) - f[3]) - man_bits;
  return std::ldexp(static_cast<double>(hidden + mantissa), e);
}

// Magnitudes of a float format in ascending order: all of them up to 16 bits, else runs of
// neighbours around random codes and at both ends.
inline std::vector<double> magnitudes(const FormatInts& f) {
  const int64_t codes = int64_t{1} << (f[1] + f[2]);
  const double max = largest_float(f);
  std::vector<int64_t> chosen;
  if (codes <= 1 << 15) {
    for (int64_t code = 0; code < codes; ++code) chosen.push_back(code);
  } else {
    Source source(static_cast<uint64_t>(codes));
    for (int run = 0; run < 400; ++run) {
      int64_t first = static_cast<int64_t>(source.next() % static_cast<uint64_t>(codes - 5));
      // Binade ends come as often as anything else.
      if (run % 2 == 0) first = std::max<int64_t>((first >> f[2] << f[2]) - 2, 0);
      if (run < 4) first = run % 2 == 0 ? 0 : codes - 5;
      for (int64_t i = 0; i < 5; ++i) chosen.push_back(first + i);
    }
    std::sort(chosen.begin(), chosen.end());
  }
  std::vector<double> result;
  for (int64_t code : chosen) {
    const double a = float_of_code(f, code);
    if (f[5] == 0 && code > 0 && code >> f[2] == 0) continue;
    if (a <= max && (result.empty() || a > result.back())) result.push_back(a);
  }
  return result;
}

inline std::vector<double> fixed_values(const FormatInts& f) {
  const int64_t count = int64_t{1} << f[1];
  const int64_t lowest = f[3] != 0 ? -count / 2 : 0;
  const int64_t step = std::max<int64_t>(count >> 16, 1);
  std::vector<double> result;
  for (int64_t n = lowest; n < lowest + count; n += step) {
    result.push_back(std::ldexp(static_cast<double>(n), -static_cast<int>(f[2])));
  }
  return result;
}

// The values of a format; a float format's have both signs, unless it has none.
inline std::vector<double> values_of(const FormatInts& f) {
  if (f[0] == 4) return table_of(f).values;
  if (f[0] != 0) return fixed_values(f);
  std::vector<double> values = magnitudes(f);
  const size_t count = values.size();
  const bool one_zero = has_one_zero(f);
  for (size_t i = one_zero ? 1 : 0; i < count && f[7] == 0; ++i) values.push_back(-values[i]);
  return values;
}

inline void append_with_neighbours(std::vector<double>& to, double x) {
  for (double y : {x, std::nextafter(x, HUGE_VAL), std::nextafter(x, -HUGE_VAL)}) {
    to.push_back(y);
    to.push_back(-y);
  }
}

// Ties between neighbours with their own neighbours in double, a table's values and boundaries too,
// the ends of the range, specials, and random values.
inline std::vector<double> hard_values(const FormatInts& f) {
  const std::vector<double> grid = f[0] == 0 ? magnitudes(f) : values_of(f);
  std::vector<double> result;
  if (f[0] == 4) {
    for (const auto* list : {&grid, &table_of(f).boundaries}) {
      for (double x : *list) append_with_neighbours(result, x);
    }
  }
  for (size_t i = 0; i + 1 < grid.size(); ++i) {
    append_with_neighbours(result, (grid[i] + grid[i + 1]) / 2);
  }
  const double max = grid.back();
  const double quantum = f[0] != 0 ? std::ldexp(1.0, -static_cast<int>(f[2]))
                                   : std::ldexp(1.0, std::ilogb(max) - static_cast<int>(f[2]));
  for (int halves = 1; halves <= 7; ++halves) {
    append_with_neighbours(result, max + halves * quantum / 2);
    append_with_neighbours(result, grid.front() - halves * quantum / 2);
  }
  for (int exponent : {-400, -200, -149, -126, 127, 128, 160, 199}) {
    append_with_neighbours(result, std::ldexp(1.0, exponent) * 1.5);
  }
  Source source(static_cast<uint64_t>(f[1] * 100 + f[2]));
  for (int i = 0; i < 2000; ++i) {
    const double detail = 1.0 + std::ldexp(static_cast<double>(source.next() >> 12), -52);
    result.push_back((i % 2 == 0 ? 1 : -1) * detail * source.number(-150, 127));
    result.push_back((i % 2 == 0 ? 1 : -1) * detail * max *
                     std::ldexp(1.0, source.between(-30, 3)));
  }
  for (double x : {0.0, HUGE_VAL}) {
    result.push_back(x);
    result.push_back(-x);
  }
  result.push_back(std::nan(""));
  // Magnitudes below 2^-400 are outside the range of round_to.
  std::vector<double> kept;
  for (double x : result) {
    const double a = std::fabs(x);
    if (!(a != 0 && a < 0x1p-400)) kept.push_back(x);
  }
  return kept;
}

}  // namespace lpk_test
