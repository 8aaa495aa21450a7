// How chunks close in float32, if they can.
#pragma once

#include "common/accumulate.h"

namespace lpk::cuda {

// The step after the float32 sum. kNone: none is known here, and another kernel makes it. kFloat:
// nothing beyond float32's own addition. kBits: the rounding of a format with float32's exponents,
// whose bits carry up to infinity by themselves. kNarrow: that of any other format, as long as its
// magic constant and the bits below its last place stay within float32.
enum class OuterWay : int32_t { kNone, kFloat, kBits, kNarrow };

LPK_HD OuterWay outer_way(const Accumulator& acc) {
  const Format& f = acc.outer;
  if (acc.outer_rounding != Rounding::kNearestEven || f.kind != Kind::kFloat)
    return OuterWay::kNone;
  // These ways would take a zero's sign from a chunk that has none.
  if (!f.subnormals || f.is_unsigned || (acc.fmt.one_zero && !f.one_zero)) return OuterWay::kNone;
  const bool own = f.exp_bits == 8 && f.emin == -126 && f.specials == Specials::kIeee &&
                   f.overflow == Overflow::kInfinity;
  if (own && f.man_bits == 23) return OuterWay::kFloat;
  if (f.man_bits < 1 || f.man_bits > 21) return OuterWay::kNone;
  if (own) return OuterWay::kBits;
  const bool fits =
      f.emin >= -126 && f.emin - f.man_bits >= -147 && log2_of(f.max) + 25 - f.man_bits <= 127;
  return fits ? OuterWay::kNarrow : OuterWay::kNone;
}

}  // namespace lpk::cuda
