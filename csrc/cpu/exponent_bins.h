// Histograms of the exponent fields of words, by vectors.
//
// The field of an element becomes one bit of its lane, 1 << (field - base), and bits are added
// where they stand, as in a positional population count: a full adder makes two vectors of one
// weight one of that weight and one of twice it, so a vector of elements costs one full adder,
// however many bins there are. A lane has 32 bits: base goes with what a span of words has, and a
// span of more exponents is counted one element at a time.
#pragma once

#include "count.h"
#include "count_spans.h"

namespace lpk {
namespace {

// The magnitudes of words that are not zero; most is 0 where all are.
struct Extent {
  uint32_t least, most;
};

template <class V>
__attribute__((noinline)) Extent extent_of(const uint32_t* x, int64_t count) {
  using U = typename V::U;
  // Less one, so that zero is the largest.
  U least = U{} - 1, most{};
  const auto look = [&](U word) __attribute__((always_inline)) {
    const U a = word & ~kSignWord, less = a - 1;
    least = less < least ? less : least;
    most = a > most ? a : most;
  };
  int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) look(load<U>(x + i));
  for (; i < count; ++i) look(U{} + x[i]);
  uint32_t lows[V::kWidth], highs[V::kWidth];
  store(lows, least);
  store(highs, most);
  return {*std::min_element(lows, lows + V::kWidth) + 1,
          *std::max_element(highs, highs + V::kWidth)};
}

// One element at a time: first a page of fields as bytes, then their increments.
template <class V>
void count_fields(const uint32_t* x, int64_t count, Tally* tally) {
  typedef uint8_t Bytes __attribute__((vector_size(V::kWidth)));
  constexpr int kMany = Tally::kHistograms;
  constexpr int64_t kLine = 16;
  uint8_t fields[kPageWords];
  for (int64_t i = 0; i < count; i += kPageWords) {
    const int64_t n = std::min(kPageWords, count - i);
    int64_t j = 0;
    if constexpr (V::kWidth > 1) {
      for (; j + V::kWidth <= n; j += V::kWidth) {
        const typename V::U shifted = load<typename V::U>(x + i + j) >> 23;
        const Bytes bytes = __builtin_convertvector(shifted, Bytes);
        std::memcpy(fields + j, &bytes, sizeof bytes);
      }
    }
    for (; j < n; ++j) fields[j] = static_cast<uint8_t>(x[i + j] >> 23);
    for (j = 0; j + kLine <= n; j += kLine) {
#pragma GCC unroll 16
      for (int h = 0; h < kLine; ++h) ++tally->bins[h % kMany][fields[j + h]];
    }
    for (; j < n; ++j) ++tally->bins[j % kMany][fields[j]];
  }
}

// In every bit: sum + a + b, whose lower digit stays in sum; the upper one is returned.
template <class V>
LPK_HD typename V::U full_add(typename V::U* sum, typename V::U a, typename V::U b) {
  using U = typename V::U;
  const U s = *sum;
#if defined(__AVX512F__)
  if constexpr (V::kWidth == 16) {
    *sum = (U)_mm512_ternarylogic_epi32((__m512i)s, (__m512i)a, (__m512i)b, 0x96);
    return (U)_mm512_ternarylogic_epi32((__m512i)s, (__m512i)a, (__m512i)b, 0xe8);
  }
#endif
  const U either = s ^ a;
  *sum = either ^ b;
  return (s & a) | (either & b);
}

// How many lanes have a bit.
template <class V>
LPK_HD int lanes_with(typename V::U x, int bit) {
#if defined(__AVX512F__)
  if constexpr (V::kWidth == 16) {
    const __m512i one = _mm512_set1_epi32(static_cast<int>(1u << bit));
    return __builtin_popcount(_mm512_test_epi32_mask((__m512i)x, one));
  }
#endif
#if defined(__AVX2__)
  if constexpr (V::kWidth == 8)
    return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps((__m256)(x << (31 - bit)))));
#endif
  if constexpr (V::kWidth == 1) return static_cast<int>(x >> bit & 1);
}

// Adds to the bins of a tally, to all of them only once flushed.
template <class V>
class ExponentBins {
  using U = typename V::U;

 public:
  explicit ExponentBins(Tally* tally) : tally_(tally) {}
  ExponentBins(const ExponentBins&) = delete;
  ~ExponentBins() { flush(); }

  Extent add(const uint32_t* x, int64_t count) {
    const Extent extent = extent_of<V>(x, count);
    const int64_t whole = V::kWidth > 1 && fits(extent) ? count - count % kUnit : 0;
    for (int64_t i = 0; i < whole;) i += add_units(x + i, (whole - i) / kUnit);
    count_fields<V>(x + whole, count - whole, tally_);
    return extent;
  }

  void flush() {
    if (units_ == 0) return;
    // What waits is added as its level's third digit.
    U carry{};
    for (int level = 0; level < kLevels; ++level) {
      const U waiting = units_ >> level & 1 ? waiting_[level] : U{};
      carry = full_add<V>(&sums_[kUnitLevels + level], waiting, carry);
    }
    sums_[kUnitLevels + kLevels] = carry;
    int64_t inside = 0;
    for (int bit = 0; bit < kWindow && base_ + bit < kBins; ++bit) {
      int64_t count = 0;
      for (int level = 0; level <= kUnitLevels + kLevels; ++level)
        count += static_cast<int64_t>(lanes_with<V>(sums_[level], bit)) << level;
      tally_->bins[0][base_ + bit] += static_cast<uint32_t>(count);
      inside += count;
    }
    // Nothing but zeros, and what is below the normal numbers, has no bit.
    tally_->bins[0][0] += static_cast<uint32_t>(units_ * kUnit - inside);
    std::fill(std::begin(sums_), std::end(sums_), U{});
    units_ = 0;
  }

 private:
  static constexpr int kWindow = 32;
  // Vectors of a unit, which are added in registers, and sums of units.
  static constexpr int kUnitLevels = 4, kLevels = 8;
  static constexpr int64_t kUnit = V::kWidth << kUnitLevels;
  // One more would carry beyond the last level.
  static constexpr int64_t kMostUnits = (1 << kLevels) - 1;

  // Whether all of these have a bit, if need be of another base; zeros need none.
  bool fits(const Extent& extent) {
    const int low = static_cast<int>(extent.least >> 23),
              high = static_cast<int>(extent.most >> 23);
    if (extent.most == 0 || (low >= base_ && high < base_ + kWindow)) return true;
    if (low == 0 || high - low >= kWindow) return false;
    flush();
    base_ = std::max(1, low - (kWindow - 1 - (high - low)) / 2);
    return true;
  }

  // Returns how many words it took.
  __attribute__((noinline)) int64_t add_units(const uint32_t* x, int64_t units) {
    if (units_ == kMostUnits) flush();
    units = std::min(units, kMostUnits - units_);
    U sums[kUnitLevels];
    std::copy(sums_, sums_ + kUnitLevels, sums);
    for (int64_t unit = 0; unit < units; ++unit) {
      U carry = sum<kUnitLevels>(x + unit * kUnit, sums, U{} + static_cast<uint32_t>(base_));
      int level = 0;
      for (int64_t n = units_++; n & 1; n >>= 1, ++level)
        carry = full_add<V>(&sums_[kUnitLevels + level], waiting_[level], carry);
      waiting_[level] = carry;
    }
    std::copy(sums, sums + kUnitLevels, sums_);
    return units * kUnit;
  }

  // Adds 2^kLevel vectors to the sums below; what these carry is returned.
  template <int kLevel>
  LPK_HD static U sum(const uint32_t* x, U* sums, U base) {
    if constexpr (kLevel == 0) {
      __builtin_prefetch(x + kTurnedWords);
      return shift_left<V>(U{} + 1, ((load<U>(x) & ~kSignWord) >> 23) - base);
    } else {
      const U first = sum<kLevel - 1>(x, sums, base);
      const U second = sum<kLevel - 1>(x + (V::kWidth << (kLevel - 1)), sums, base);
      return full_add<V>(&sums[kLevel - 1], first, second);
    }
  }

  Tally* tally_;
  int base_ = 1;
  int64_t units_ = 0;
  // Of weight 2^level, as are those that wait where units_ has the bit.
  U sums_[kUnitLevels + kLevels + 1] = {};
  U waiting_[kLevels] = {};
};

}  // namespace
}  // namespace lpk
