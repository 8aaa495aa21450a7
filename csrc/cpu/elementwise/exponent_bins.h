// Histograms of the exponent fields of words, by vectors.
//
// The field of an element becomes one bit of its lane, 1 << (field - base), and bits are added
// where they stand, as in a positional population count: a full adder makes three vectors of
// one weight into two, of that weight and of twice it, so a vector of elements costs one full
// adder, however many bins there are. A lane has room for 32 fields. Elements with other fields are
// found by the extent of the added fields, and counted one at a time.
#pragma once

#include "count.h"
#include "count_spans.h"

namespace lpk {
namespace {

// The magnitudes of words that are not zero: least is at most `most`, which is 0 where all are.
struct Extent {
  uint32_t least, most;
};

template <class V>
class Extents {
  using U = typename V::U;

 public:
  LPK_HD void see(U a) {
    const U less = a - 1;
    least_ = less < least_ ? less : least_;
    most_ = a > most_ ? a : most_;
  }
  void see_some(const uint32_t* x, int64_t count) {
    int64_t i = 0;
    for (; i + V::kWidth <= count; i += V::kWidth) see(load<U>(x + i) & ~kSignWord);
    uint32_t last[V::kWidth] = {};
    std::memcpy(last, x + i, (count - i) * sizeof *last);
    see(load<U>(last) & ~kSignWord);
  }
  Extent found() const {
    uint32_t lows[V::kWidth], highs[V::kWidth];
    store(lows, least_);
    store(highs, most_);
    return {*std::min_element(lows, lows + V::kWidth) + 1,
            *std::max_element(highs, highs + V::kWidth)};
  }

 private:
  // The word less one, so that zero is the largest.
  U least_ = U{} - 1, most_{};
};

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

// Adds to the bins of a tally, to all of them only once flushed.
template <class V>
class ExponentBins {
  using U = typename V::U;

 public:
  explicit ExponentBins(Tally* tally) : tally_(tally) {}
  ExponentBins(const ExponentBins&) = delete;
  ~ExponentBins() { flush(); }

  Extent add(const uint32_t* x, int64_t count) {
    Extents<V> extents;
    int64_t whole = count - count % kUnit;
    if (whole > 0 && (scattered_ || base_ == 0)) {
      extents.see_some(x, whole);
      const Extent ahead = extents.found();
      scattered_ = scattered_ && field(ahead.most) - field(ahead.least) >= kWindow;
      if (scattered_) whole = 0;
      if (!scattered_) choose_base(ahead);
    }
    for (int64_t i = 0; i < whole;) i += add_units(x + i, (whole - i) / kUnit, &extents);
    const Extent added = extents.found();
    if (whole > 0 && !fits(added)) add_outside(x, whole, added);
    if (whole == count) return added;
    count_fields<V>(x + whole, count - whole, tally_);
    extents.see_some(x + whole, count - whole);
    return extents.found();
  }

  void flush() {
    if (units_ == 0) return;
    // A vector that waits is the third digit to add at its level.
    U carry{};
    for (int level = 0; level < kLevels; ++level) {
      const U waiting = units_ >> level & 1 ? waiting_[level] : U{};
      carry = full_add<V>(&sums_[kUnitLevels + level], waiting, carry);
    }
    sums_[kUnitLevels + kLevels] = carry;
    // Zeros and what is below the normal numbers have no bit.
    int64_t without = units_ * kUnit - outside_;
    for (int bit = 0; bit < kWindow && base_ + bit < kBins; ++bit) {
      int64_t count = 0;
      for (int level = 0; level <= kUnitLevels + kLevels; ++level)
        count += static_cast<int64_t>(__builtin_popcount(lanes_with<V>(sums_[level], bit)))
                 << level;
      tally_->bins[0][base_ + bit] += static_cast<uint32_t>(count);
      without -= count;
    }
    tally_->bins[0][0] += static_cast<uint32_t>(without);
    std::fill(std::begin(sums_), std::end(sums_), U{});
    units_ = outside_ = 0;
  }

 private:
  static constexpr int kWindow = 32;
  // Vectors of a unit, which are added in registers, and sums of units.
  static constexpr int kUnitLevels = 4, kLevels = 8;
  static constexpr int64_t kUnit = V::kWidth << kUnitLevels;
  // One vector more would carry beyond the last level.
  static constexpr int64_t kMostUnits = (1 << kLevels) - 1;

  // A word without a bit takes as long as about ten with one: one word of every kFew is many.
  static constexpr int64_t kFew = 16;

  static int field(uint32_t magnitude) { return static_cast<int>(magnitude >> 23); }

  // Whether all of these have a bit or are in bin 0.
  bool fits(const Extent& e) const {
    return field(e.most) < base_ + kWindow && (field(e.least) >= base_ || field(e.most) == 0);
  }

  // The base puts these fields into the middle of the window. Where they do not fit it takes the
  // upper ones, which most values of a tensor have. Zeros need no bit.
  void choose_base(const Extent& e) {
    if (e.most == 0) return;
    const int spare = std::max(0, kWindow - 1 - (field(e.most) - field(e.least)));
    const int base = std::max(1, field(e.most) - (kWindow - 1) + spare / 2);
    if (base == base_) return;
    flush();
    base_ = base;
  }

  // Returns how many words it took.
  __attribute__((noinline)) int64_t add_units(const uint32_t* x, int64_t units,
                                              Extents<V>* extents) {
    if (units_ == kMostUnits) flush();
    units = std::min(units, kMostUnits - units_);
    const U base = U{} + static_cast<uint32_t>(base_);
    Extents<V> seen = *extents;
    U sums[kUnitLevels];
    std::copy(sums_, sums_ + kUnitLevels, sums);
    for (int64_t unit = 0; unit < units; ++unit) {
      U carry = sum<kUnitLevels>(x + unit * kUnit, base, sums, &seen);
      int level = 0;
      for (int64_t n = units_++; n & 1; n >>= 1, ++level)
        carry = full_add<V>(&sums_[kUnitLevels + level], waiting_[level], carry);
      waiting_[level] = carry;
    }
    std::copy(sums, sums + kUnitLevels, sums_);
    *extents = seen;
    return units * kUnit;
  }

  // Adds 2^kLevel vectors to the sums below, and returns the carry of these sums.
  template <int kLevel>
  LPK_HD static U sum(const uint32_t* x, U base, U* sums, Extents<V>* seen) {
    if constexpr (kLevel == 0) {
      __builtin_prefetch(x + kPageWords);
      const U a = load<U>(x) & ~kSignWord;
      seen->see(a);
      return shift_left<V>(U{} + 1, (a >> 23) - base);
    } else {
      const U first = sum<kLevel - 1>(x, base, sums, seen);
      const U second = sum<kLevel - 1>(x + (V::kWidth << (kLevel - 1)), base, sums, seen);
      return full_add<V>(&sums[kLevel - 1], first, second);
    }
  }

  // Counts the added words that have no bit. If they are many, the next words get another base or,
  // if that base would be the same, no bits.
  __attribute__((noinline)) void add_outside(const uint32_t* x, int64_t count, const Extent& e) {
    const int64_t before = outside_;
    for (int64_t i = 0; i < count; i += V::kWidth) {
      const U fields = (load<U>(x + i) & ~kSignWord) >> 23;
      uint32_t outside = lanes_outside<V>(fields, U{} + static_cast<uint32_t>(base_));
      outside_ += __builtin_popcount(outside);
      for (; outside != 0; outside &= outside - 1) {
        const int lane = __builtin_ctz(outside);
        ++tally_->bins[lane % Tally::kHistograms][x[i + lane] >> 23 & (kBins - 1)];
      }
    }
    if (outside_ - before < count / kFew) return;
    const int base = base_;
    choose_base(e);
    scattered_ = base_ == base;
  }

  Tally* tally_;
  int base_ = 0;
  bool scattered_ = false;
  int64_t units_ = 0;
  // How many of the added words are in a tally already.
  int64_t outside_ = 0;
  // Sums of weight 2^level; those of the same weight wait where units_ has the bit of the level.
  U sums_[kUnitLevels + kLevels + 1] = {};
  U waiting_[kLevels] = {};
};

}  // namespace
}  // namespace lpk
