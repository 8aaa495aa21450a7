// Rounding of float32 values to a table, by their words: the search of TableCells or of WordLadder
// for a vector at a time. Every mode but the one that draws.
#pragma once

#include "word_format.h"

namespace lpk {
namespace {

// r where x is finite; NaN, or what an infinity becomes.
template <class V>
LPK_HD typename V::U with_specials(typename V::U x, typename V::U r, const uint32_t* infinity) {
  using U = typename V::U;
  const U a = x & ~kSignWord;
  if (none_above<V>(a, kInfinityWord - 1)) return r;
  const U infinite = (x & kSignWord) == 0 ? U{} + infinity[0] : U{} + infinity[1];
  const U number = a == kInfinityWord ? infinite : r;
  return above<V>(a, U{} + kInfinityWord) ? U{} + kNanWord : number;
}

template <class V>
struct TableCellRule {
  using U = typename V::U;

  TableCells c;

  LPK_HD U operator()(U x, U) const {
    const U first = U{} + c.first, last = first + (c.count - 1);
    U i = (x & ~kSignWord) >> c.shift;
    i = i < first ? first : i;
    i = i > last ? last : i;
    i += ((U{} - (x >> 31)) & c.count) - first;
    const auto threshold = as_floats<V>(gathered<V>(c.thresholds, i));
    i += i + (as_floats<V>(x) >= threshold ? U{} + 1 : U{});
    return with_specials<V>(x, gathered<V>(c.values, i), c.infinity);
  }
};

template <class V>
struct TableRule {
  using U = typename V::U;

  WordLadder l;

  LPK_HD U operator()(U x, U) const {
    const U row = gathered<V>(l.rows, x >> 23);
    const U shift = row & ((1u << WordLadder::kShiftBits) - 1);
    U i = gathered<V>(l.cells,
                      (row >> WordLadder::kShiftBits) + shift_right<V>(x & 0x7fffffu, shift));
    if (__builtin_expect(l.steps == 1, 1)) {
      i += step(x, i, 0);
    } else {
      for (int s = l.steps - 1; s >= 0; --s) i += step(x, i, s);
    }
    return with_specials<V>(x, gathered<V>(l.values, i), l.infinity);
  }

 private:
  // 2^s, or 0 where the threshold at the end of so many is beyond x. No number is at least the NaN
  // behind all thresholds.
  LPK_HD U step(U x, U i, int s) const {
    const U at = i + ((1u << s) - 1);
    const auto t = as_floats<V>(gathered<V>(l.thresholds, at));
    return as_floats<V>(x) >= t ? U{} + (1u << s) : U{};
  }
};

}  // namespace
}  // namespace lpk
