// What rounding to nearest even would do to a tensor that it does not write: the histogram, and how
// many magnitudes lie in three intervals. A span of words that has none there is read no further.
#pragma once

#include "exponent_bins.h"

namespace lpk {
namespace {

// Two magnitudes as words: the largest that rounds to zero, and the largest that does not overflow.
struct NearestEnds {
  uint32_t vanishing, last;

  // A tie with zero goes to zero.
  static bool fits(const Format& f) {
    return f.kind == Kind::kFloat && f.subnormals && !f.is_unsigned;
  }

  explicit NearestEnds(const Format& f) {
    const float from = static_cast<float>(f.overflow_from);
    last = bits_of_float(from) - (from < f.overflow_from ? 0 : 1);
    // Half of the least value; float32's own, 2^-150, goes to zero here as nothing else does there.
    vanishing = bits_of_float(static_cast<float>(std::ldexp(1.0, f.emin - f.man_bits - 1)));
  }
};

// How many magnitudes lie in low .. high.
template <class V>
__attribute__((noinline)) int64_t count_between(const uint32_t* x, int64_t count, uint32_t low,
                                                uint32_t high) {
  using U = typename V::U;
  const uint32_t span = high - low;
  int64_t i = 0, found = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) {
    const U from = (load<U>(x + i) & ~kSignWord) - low;
    found += V::kWidth - __builtin_popcount(lanes_beyond<V>(from, span));
  }
  for (; i < count; ++i) found += (x[i] & ~kSignWord) - low <= span;
  return found;
}

template <class V>
void look_at_nearest(const ElementBlock& job, const NearestEnds& ends, Tally* tally) {
  constexpr uint32_t kLeastNormal = 1u << 23;
  int64_t subnormals = 0;
  ExponentBins<V> bins(tally);
  for_words<V>(job, [&](const uint32_t* words, int64_t count, int64_t) {
    const Extent extent = bins.add(words, count);
    const auto between = [&](uint32_t low, uint32_t high) {
      const bool none = extent.most < low || extent.least > high || high < low;
      return none ? 0 : count_between<V>(words, count, low, high);
    };
    if (extent.most == 0) return;
    tally->counts[kUnderflows] += between(1, ends.vanishing);
    tally->counts[kOverflows] += between(ends.last + 1, kInfinityWord - 1);
    subnormals += between(1, kLeastNormal - 1);
  });
  bins.flush();
  tally->counts[kZeros] += tally->bin(0) - subnormals;
  tally->counts[kNonfinite] += tally->bin(kBins - 1);
}

}  // namespace
}  // namespace lpk
