// The words of portable.h for lanes in another order.
#pragma once

#include <cstring>
#include <utility>

#include "common/format.h"

namespace lpk {
namespace {

// x with the lanes exchanged whose numbers differ in the bit kBit.
template <int kBit, class X, int... kLane>
LPK_HD X exchanged(X x, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(x, x, (kLane ^ kBit)...);
}

template <int kBit, class X>
LPK_HD X exchanged(X x) {
  constexpr int kWidth = sizeof x / sizeof x[0];
  return exchanged<kBit>(x, std::make_integer_sequence<int, kWidth>{});
}

// Lane i[l] of x in lane l; of i only the bits count that number a lane.
template <class V>
LPK_HD typename V::U lanes_at(typename V::U x, typename V::U i) {
  if constexpr (V::kWidth == 1) {
    return x;
  } else {
    typename V::U y{};
    for (int l = 0; l < V::kWidth; ++l) y[l] = x[i[l] % V::kWidth];
    return y;
  }
}

// A table of 16 words in registers, read by the low four bits of an index.
template <class V>
struct SixteenWords {
  using U = typename V::U;
  static constexpr int kParts = 16 / V::kWidth;
  U part[kParts];

  explicit SixteenWords(const void* from) { std::memcpy(part, from, sizeof part); }
  LPK_HD U at(U i) const {
    U word = lanes_at<V>(part[0], i);
    for (uint32_t p = 1; p < kParts; ++p)
      word = (i & (16 - V::kWidth)) == p * V::kWidth ? lanes_at<V>(part[p], i) : word;
    return word;
  }
};

}  // namespace
}  // namespace lpk
