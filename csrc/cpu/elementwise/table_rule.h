// Rounding of float32 values to a table, by their words: the search of WordLadder for a vector at a
// time. Every mode but the one that draws.
#pragma once

#include "word_format.h"

namespace lpk {
namespace {

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
    const U r = gathered<V>(l.values, i);
    const U a = x & ~kSignWord;
    if (none_above<V>(a, kInfinityWord - 1)) return r;
    const U infinite = (x & kSignWord) == 0 ? U{} + l.infinity[0] : U{} + l.infinity[1];
    const U known = a == kInfinityWord ? infinite : r;
    return above<V>(a, U{} + kInfinityWord) ? U{} + kNanWord : known;
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
