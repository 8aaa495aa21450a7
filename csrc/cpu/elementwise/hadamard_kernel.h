// y = round(x D H / sqrt(size)) of runs side by side, a vector of them at a time, by sums in
// double.
//
// Where a double holds every sum of a run, sums are exact, and so is the quotient by 4 or 8. Else
// both ends of the quotient's error are rounded: where they differ, the run is left to the driver.
#pragma once

#include <cmath>
#include <cstdint>

#include "cpu/lanes/lanes.h"
#include "hadamard.h"

namespace lpk {
namespace {

constexpr int64_t kSignOfDouble = INT64_MIN;

template <class V>
LPK_HD typename V::I long_words(typename V::U x) {
  if constexpr (V::kWidth == 1) {
    return x;
  } else {
    return __builtin_convertvector(x, typename V::I);
  }
}

// r[0 .. kSize - 1] becomes r H.
template <int kSize, class D>
struct Sylvester {
  LPK_HD static void multiply(D* r) {
#pragma GCC unroll 8
    for (int i = 0; i < kSize / 2; ++i) {
      const D a = r[i], b = r[i + kSize / 2];
      r[i] = a + b;
      r[i + kSize / 2] = a - b;
    }
    Sylvester<kSize / 2, D>::multiply(r);
    Sylvester<kSize / 2, D>::multiply(r + kSize / 2);
  }
};
template <class D>
struct Sylvester<1, D> {
  LPK_HD static void multiply(D*) {}
};

// v H in two passes over memory, each of at most 16 values in registers.
template <int kSize, class D>
LPK_HD void multiply_sylvester(D* v) {
  constexpr int kFar = kSize / 16;
  for (int i = 0; i < kSize; i += 16) Sylvester<16, D>::multiply(v + i);
  if constexpr (kFar > 1) {
    for (int i = 0; i < 16; ++i) {
      D r[kFar];
#pragma GCC unroll 8
      for (int j = 0; j < kFar; ++j) r[j] = v[i + 16 * j];
      Sylvester<kFar, D>::multiply(r);
#pragma GCC unroll 8
      for (int j = 0; j < kFar; ++j) v[i + 16 * j] = r[j];
    }
  }
}

// The bits of the double that y is rounded to, to bfloat16's places. A y below +0 may become
// anything else than a y above.
template <class V>
LPK_HD typename V::I bits_as_bfloat16(typename V::D y) {
  using D = typename V::D;
  using I = typename V::I;
  using L = Lanes<D>;
  // The last place of a double near kSmall is bfloat16's least, 2^-133.
  constexpr double kSmall = 0x1p-81, kLeastNormal = 0x1p-126;
  constexpr int kDropped = 45;
  const I b = L::bits(y), half = I{} + ((int64_t{1} << (kDropped - 1)) - 1);
  const I normal = (b + half + ((b >> kDropped) & 1)) & ~((int64_t{1} << kDropped) - 1);
  const I small = L::bits((y + kSmall) - kSmall);
  return y < kLeastNormal ? small : normal;
}

// The largest and the smallest magnitude of every run, as words of float32; zeros are left out.
template <class V>
struct Extent {
  using U = typename V::U;
  U largest{}, rest = ~U{};  // the smallest, minus 1

  LPK_HD void add(U magnitude) {
    largest = magnitude > largest ? magnitude : largest;
    const U less = magnitude - 1;
    rest = less < rest ? less : rest;
  }

  // What a quotient may be wrong by: 0 where a double holds every sum, and infinity where a value
  // is no number or infinite.
  template <int kSize>
  LPK_HD typename V::D error(double factor) const {
    using D = typename V::D;
    using I = typename V::I;
    constexpr int kSteps = kSize == 16 ? 4 : kSize == 32 ? 5 : kSize == 64 ? 6 : 7;
    // With F the exponent field of the largest value and f that of the smallest, sums are below
    // 2^(F - 126 + kSteps) and multiples of 2^(f - 150). A subnormal's f may as well be 1.
    constexpr int kMost = 53 - 24 - kSteps;
    const I field = long_words<V>(largest >> 23);
    const I spread = field - long_words<V>((rest + 1) >> 23);
    const I exponent = field == 255 ? I{} + 2047 : field + (1023 - 126);
    const D above = Lanes<D>::value(exponent << 52);
    // Each step is wrong by at most 2^-53 times the sum of all magnitudes, and there are less than
    // 8; the product with the factor adds less than one step.
    const D bound = above * (kSize * factor * 0x1p-50);
    return (spread > kMost) | (field == 255) ? bound : D{};
  }
};

template <class V, int kSize>
LPK_HD typename V::D load_runs(const HadamardTile& t, int lane, typename V::D* v) {
  using L = Lanes<typename V::D>;
  Extent<V> extent;
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i) {
    const float* p = t.x + i * kHadamardLanes + lane;
    const int64_t sign = static_cast<int64_t>(uint64_t{t.signs[i]} << 32);
    extent.add(load<typename V::U>(p) & 0x7fffffffu);
    v[i] = L::value(L::bits(load_floats<V>(p)) ^ sign);
  }
  return extent.template error<kSize>(1 / std::sqrt(double{kSize}));
}

template <class V, int kSize>
LPK_HD uint32_t transform_runs(const HadamardTile& t, int lane) {
  using D = typename V::D;
  using I = typename V::I;
  using L = Lanes<D>;
  constexpr bool kSquare = kSize == 16 || kSize == 64;
  const double factor = 1 / std::sqrt(double{kSize});
  alignas(64) D v[kSize];
  const D error = load_runs<V, kSize>(t, lane, v);
  multiply_sylvester<kSize>(v);
  const bool exact = kSquare && lane_bits<V>(error != 0) == 0;
  uint32_t open = 0;
#pragma GCC unroll 4
  for (int i = 0; i < kSize; ++i) {
    // A sum of negative zeros is +0.
    const D y = v[i] * factor + 0.0;
    const I sign = L::bits(y) & kSignOfDouble;
    const D magnitude = L::value(L::bits(y) ^ sign);
    I rounded;
    if (exact) {
      rounded = bits_as_bfloat16<V>(magnitude);
    } else {
      // The factor and the product are rounded: less than 2^-51 of y, where 4 and 8 leave nothing.
      const D wrong = kSquare ? error : error + magnitude * 0x1p-50;
      const D low = magnitude - wrong;
      rounded = bits_as_bfloat16<V>(magnitude + wrong);
      const auto same = (bits_as_bfloat16<V>(low) == rounded) & ((low > 0) | (wrong == 0));
      open |= ~lane_bits<V>(same);
    }
    store_floats<V>(t.y + i * kHadamardLanes + lane, L::value(rounded | sign));
  }
  return open & ((1u << V::kWidth) - 1);
}

template <class V>
uint32_t hadamard_tile(const HadamardTile& t) {
  uint32_t open = 0;
  for (int lane = 0; lane < kHadamardLanes; lane += V::kWidth) {
    uint32_t found = 0;
    switch (t.size) {
      case 16:
        found = transform_runs<V, 16>(t, lane);
        break;
      case 32:
        found = transform_runs<V, 32>(t, lane);
        break;
      case 64:
        found = transform_runs<V, 64>(t, lane);
        break;
      default:
        found = transform_runs<V, 128>(t, lane);
    }
    open |= found << lane;
  }
  return open;
}

}  // namespace
}  // namespace lpk
