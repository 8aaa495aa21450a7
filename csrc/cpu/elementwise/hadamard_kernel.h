// y = round(x D H / sqrt(size)) of runs side by side, a vector of them at a time, by sums in
// double.
//
// Where a double holds every sum of a run, sums are exact, and so is the quotient by 4 or 8. Else
// both ends of the quotient's error are rounded: where they differ, the run is left to the driver.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cpu/lanes/lanes.h"
#include "hadamard.h"

namespace lpk {
namespace {

// The sign bit in the second lane of every pair of lanes whose numbers differ in the bit kBit.
template <class V, int kBit>
LPK_HD typename V::I signs_of_second() {
  typename V::I sign{};
  for (int i = 0; i < V::kWidth; ++i) sign[i] = (i & kBit) != 0 ? kSignBit : 0;
  return sign;
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

// y rounded to bfloat16's places, but for the sign of zero: a number with its last place there is
// subtracted, and added again.
template <class D>
LPK_HD D as_bfloat16(D y) {
  using L = Lanes<D>;
  using I = typename L::Bits;
  // Times -2^45 and a half more: a double has 52 places, and bfloat16 has 7. The least places are
  // 2^-133. The sign keeps the sum within 64 bits where y is infinite or NaN.
  constexpr int64_t kBeyond = kSignBit + (int64_t{45} << 52) + (int64_t{1} << 51);
  constexpr double kLeast = -1.5 * 0x1p-81;
  const I bits = L::bits(y);
  const D own = L::value((bits & kExponentBits) + kBeyond);
  const D places = own < kLeast ? own : D{} + kLeast;
  return (y + places) - places;
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

  // Of all lanes.
  Extent<Vec<1>> all() const {
    Extent<Vec<1>> extent;
    for (int i = 0; i < V::kWidth; ++i) {
      extent.largest = std::max(extent.largest, lane_of<V>(largest, i));
      extent.rest = std::min(extent.rest, lane_of<V>(rest, i));
    }
    return extent;
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
    const I field = converted<typename V::I>(largest >> 23);
    const I spread = field - converted<typename V::I>((rest + 1) >> 23);
    const I exponent = field == 255 ? I{} + 2047 : field + (1023 - 126);
    const D above = Lanes<D>::value(exponent << 52);
    // Each step is wrong by at most 2^-53 times the sum of all magnitudes, and there are less than
    // 8; the product with the factor adds less than one step.
    const D bound = above * (kSize * factor * 0x1p-50);
    return ((spread > kMost) | (field == 255)) ? bound : D{};
  }
};

// sums / sqrt(kSize), rounded.
template <class V, int kSize>
class Quotient {
 public:
  using D = typename V::D;
  using L = Lanes<D>;
  static constexpr bool kSquare = kSize == 16 || kSize == 64;
  static double factor() { return 1 / std::sqrt(double{kSize}); }

  // error: of the sums, divided too.
  explicit Quotient(D error)
      : factor_(factor()), error_(error), exact_(kSquare && lane_bits<V>(error != 0) == 0) {}

  LPK_HD D rounded(D sum) {
    // A sum of negative zeros is +0.
    const D y = sum * factor_ + 0.0;
    if (exact_) return with_sign(as_bfloat16(y), y);
    const D size = magnitude<D>(y);
    // The factor and the product are rounded: less than 2^-51 of y, where 4 and 8 leave nothing.
    const D wrong = kSquare ? error_ : error_ + size * 0x1p-50;
    const D low = as_bfloat16(size - wrong), high = as_bfloat16(size + wrong);
    const auto same = (low == high) & ((size > wrong) | (wrong == 0));
    open_ |= ~lane_bits<V>(same);
    return with_sign(high, y);
  }
  // Runs that have a quotient whose rounding is not decided.
  LPK_HD uint32_t open() const { return open_ & ((1u << V::kWidth) - 1); }

 private:
  LPK_HD static D with_sign(D x, D y) { return L::value(L::bits(x) | (L::bits(y) & kSignBit)); }

  const double factor_;
  const D error_;
  const bool exact_;
  uint32_t open_ = 0;
};

template <class V>
LPK_HD typename V::D load_signed(const float* p, typename V::U sign, Extent<V>* extent) {
  const typename V::U word = load<typename V::U>(p) ^ sign;
  extent->add(word & 0x7fffffffu);
  return load_floats<V>(reinterpret_cast<const float*>(&word));
}

template <class V, int kSize>
LPK_HD uint32_t transform_side_by_side(const HadamardTile& t, int lane) {
  using D = typename V::D;
  alignas(64) D v[kSize];
  Extent<V> extent;
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i)
    v[i] = load_signed<V>(t.x + i * t.x_stride + lane, typename V::U{} + t.signs[i], &extent);
  multiply_sylvester<kSize>(v);
  Quotient<V, kSize> quotient(extent.template error<kSize>(Quotient<V, kSize>::factor()));
#pragma GCC unroll 4
  for (int i = 0; i < kSize; ++i)
    store_floats<V>(t.y + i * t.y_stride + lane, quotient.rounded(v[i]));
  return quotient.open();
}

// v H within every vector: lanes whose numbers differ in one bit, kHalf.
template <class V, int kHalf>
LPK_HD typename V::D multiply_within(typename V::D v) {
  if constexpr (kHalf == 0) {
    return v;
  } else {
    using L = Lanes<typename V::D>;
    const auto own = L::value(L::bits(v) ^ signs_of_second<V, kHalf>());
    return multiply_within<V, kHalf / 2>(exchanged<kHalf>(v) + own);
  }
}

// Whether a double holds every sum and all quotients are decided; y is valid only then.
template <class V, int kSize>
bool transform_one_by_one(const HadamardRuns& t) {
  using D = typename V::D;
  constexpr int kWidth = V::kWidth, kVectors = kSize / kWidth, kPair = Isa::kWords / kWidth;
  Extent<V> extent;
  Quotient<V, kSize> quotient(D{});
  for (int64_t i = 0; i < t.count * kSize; i += kSize) {
    D v[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      const auto sign = load<typename V::U>(t.signs + j * kWidth);
      v[j] = load_signed<V>(t.x + i + j * kWidth, sign, &extent);
      v[j] = multiply_within<V, kWidth / 2>(v[j]);
    }
    if constexpr (kVectors <= 16) {
      Sylvester<kVectors, D>::multiply(v);
    } else {
      multiply_sylvester<kVectors>(v);
    }
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; j += kPair) {
      alignas(64) float words[Isa::kWords];
      for (int k = 0; k < kPair; ++k)
        store_floats<V>(words + k * kWidth, quotient.rounded(v[j + k]));
      const auto line = load<typename Bits32<Isa::kWords>::F>(words);
      float* y = t.y + i + j * kWidth;
      t.streamed ? stream(y, line) : store(y, line);
    }
  }
  if (t.streamed) Isa::end_stream();
  return extent.all().template error<kSize>(1) == 0 && quotient.open() == 0;
}

template <class Work>
auto by_size(int size, const Work& work) {
  switch (size) {
    case 16:
      return work(std::integral_constant<int, 16>{});
    case 32:
      return work(std::integral_constant<int, 32>{});
    case 64:
      return work(std::integral_constant<int, 64>{});
    default:
      return work(std::integral_constant<int, 128>{});
  }
}

template <class V>
uint32_t hadamard_side_by_side(const HadamardTile& t) {
  return by_size(t.size, [&](auto size) {
    uint32_t open = 0;
    for (int lane = 0; lane < kHadamardLanes; lane += V::kWidth)
      open |= transform_side_by_side<V, size.value>(t, lane) << lane;
    return open;
  });
}

template <class V>
bool hadamard_one_by_one(const HadamardRuns& t) {
  return by_size(t.size, [&](auto size) { return transform_one_by_one<V, size.value>(t); });
}

}  // namespace
}  // namespace lpk
