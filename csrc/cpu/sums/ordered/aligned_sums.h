// Sums of whole blocks of products cut to a common place, as tensor cores form them.
#pragma once

#include "ordered_sums.h"

namespace lpk {
namespace {

// A block's products and the sum, cut to their place.
template <class V>
struct AlignedSums : OrderedSums<V, 1> {
  using Base = OrderedSums<V, 1>;
  using D = typename V::D;
  using L = Lanes<D>;
  using Base::Base, Base::kVectors, Base::t, Base::acc;

  // An addend that adds nothing, not even a sign: a zero sum has the sign that all its addends
  // have, or toward_negative minus where one of them has it.
  const bool any_sign = acc.rounding == Rounding::kTowardNegative;
  const D nothing = Lanes<D>::all(any_sign ? 0.0 : -0.0);
  D terms[kMaxBlock][kVectors];

  LPK_HD static D magnitude(D x) { return L::value(L::bits(x) & ~kSignBit); }

  // round(sum + terms).
  LPK_HD D block_sum(D sum, D largest, int count, int v, int64_t key) {
    const AlignedPlace<D> place(largest, acc.aligned_bits);
    D part[4] = {place.cut(sum), nothing, nothing, nothing};
    int i = 0;
    for (; i + 4 <= count; i += 4) {
      for (int j = 0; j < 4; ++j) part[j] += place.cut(terms[i + j][v]);
    }
    for (; i < count; ++i) part[0] += place.cut(terms[i][v]);
    auto signs = L::bits(sum);
    for (i = 0; any_sign && i < count; ++i) signs |= L::bits(terms[i][v]);
    const D total = (part[0] + part[1]) + (part[2] + part[3]);
    return this->rounded(place.sum_of(total, signs, acc.rounding), 0, v, key);
  }

  // Products from .. to of one block, whose first position is `key`.
  template <bool kRounds>
  void add_block(int64_t from, int64_t to, int64_t key, D (&sum)[kVectors]) {
    D largest[kVectors];
    for (int v = 0; v < kVectors; ++v) largest[v] = magnitude(sum[v]);
    int count = 0;
    uint32_t any = 0;
    for (int64_t k = from; k < to; ++k) {
      const uint32_t lanes = this->present(0, k);
      if (lanes == 0) continue;
      any |= lanes;
      for (int v = 0; v < kVectors; ++v) {
        const D p = kRounds ? this->rounded_product(0, v, k) : this->exact_product(0, v, k);
        terms[count][v] = this->where(lanes, v, p, nothing);
        largest[v] = L::max(magnitude(terms[count][v]), largest[v]);
      }
      ++count;
    }
    if (any == 0) return;
    for (int v = 0; v < kVectors; ++v) {
      const D total = block_sum(sum[v], largest[v], count, v, key);
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
        acc.has_product ? add_block<true>(k, stop, first, sum[0])
                        : add_block<false>(k, stop, first, sum[0]);
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
