// Sums of whole blocks of products cut to a common place, as tensor cores form them.
#pragma once

#include "ordered_sums.h"

namespace lpk {
namespace {

template <class D>
LPK_HD D without_fraction(D x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(D) == 64) {
    return (D)_mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(D) == 32) {
    return (D)_mm256_round_pd((__m256d)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }
#endif
  if constexpr (sizeof(D) == sizeof(double)) return __builtin_trunc(x);
}

// A block's products and the sum, as multiples of 2^(e - aligned_bits) cut toward zero, e the
// exponent of the largest: at most 257 integers of 41 bits, whose sum double holds.
template <class V, bool kNearest, bool kRoundsProducts>
struct AlignedSums : OrderedSums<V, 1, kNearest, kRoundsProducts> {
  using Base = OrderedSums<V, 1, kNearest, kRoundsProducts>;
  using D = typename V::D;
  using L = Lanes<D>;
  using Base::Base, Base::kVectors, Base::t, Base::acc;

  // Adds nothing, not even a sign.
  static constexpr double kNothing = -0.0;

  D terms[kMaxBlock][kVectors];

  LPK_HD static D magnitude(D x) { return L::value(L::bits(x) & ~kSignBit); }

  // round(sum + terms). Products and sums are 0, or 2^-298 .. 2^257, or inf or NaN: whatever the
  // place then, the sum is inf or NaN too.
  template <class Bits>
  LPK_HD D block_sum(D sum, D largest, Bits signs, int count, int v, int64_t key) {
    largest = largest > 0x1p900 ? L::all(0x1p900) : largest;
    largest = L::max(largest, L::all(0x1p-400));
    const auto binade = L::bits(largest) & kExponentBits;
    const int64_t bits = int64_t{acc.aligned_bits} << 52;
    const D scale = L::value((int64_t{2046} << 52) - binade + bits);
    D part[4] = {without_fraction<D>(sum * scale), L::all(kNothing), L::all(kNothing),
                 L::all(kNothing)};
    int i = 0;
    for (; i + 4 <= count; i += 4) {
      for (int j = 0; j < 4; ++j) part[j] += without_fraction<D>(terms[i + j][v] * scale);
    }
    for (; i < count; ++i) part[0] += without_fraction<D>(terms[i][v] * scale);
    D total = (part[0] + part[1]) + (part[2] + part[3]);
    if (!kNearest && acc.rounding == Rounding::kTowardNegative)
      total = total == 0.0 ? L::value(signs & kSignBit) : total;
    return this->rounded(total * L::value(binade - bits), 0, v, key);
  }

  // Products from .. to of one block, whose first position is `key`.
  void add_block(int64_t from, int64_t to, int64_t key, D (&sum)[kVectors]) {
    D largest[kVectors];
    typename L::Bits signs[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      largest[v] = magnitude(sum[v]);
      signs[v] = L::bits(sum[v]);
    }
    int count = 0;
    uint32_t any = 0;
    for (int64_t k = from; k < to; ++k) {
      const uint32_t lanes = this->present(0, k);
      if (lanes == 0) continue;
      any |= lanes;
      for (int v = 0; v < kVectors; ++v) {
        const D p = this->product(0, v, k);
        if (!kNearest) signs[v] |= L::bits(this->where(lanes, v, p, D{}));
        terms[count][v] = this->where(lanes, v, p, L::all(kNothing));
        largest[v] = L::max(magnitude(terms[count][v]), largest[v]);
      }
      ++count;
    }
    if (any == 0) return;
    for (int v = 0; v < kVectors; ++v) {
      const D total = block_sum(sum[v], largest[v], signs[v], count, v, key);
      sum[v] = this->where(any, v, total, sum[v]);
    }
  }

  void run() {
    D sum[1][kVectors];
    for (int v = 0; v < kVectors; ++v) sum[0][v] = load_floats<V>(this->state(t.inner, 0, v));
    const auto span = [&](int64_t from, int64_t to) {
      const int64_t start = this->sum_start(this->position(from));
      for (int64_t k = from; k < to;) {
        const int64_t at = this->position(k);
        const int64_t first = at - (at - start) % acc.block;
        const int64_t stop = std::min(first_from(t, k, first + acc.block), to);
        add_block(k, stop, first, sum[0]);
        k = stop;
      }
    };
    const auto close = [&](int64_t chunk) {
      if (acc.chunk == 0) return;
      this->finish(sum, chunk);
      for (int v = 0; v < kVectors; ++v) sum[0][v] = D{};
    };
    this->for_each_sum(span, close);
    this->store_sums(sum);
  }
};

}  // namespace
}  // namespace lpk
