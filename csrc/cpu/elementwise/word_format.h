// A float format as arithmetic on the bits of float32 values sees it.
//
//   from 2^floor on     bits of a magnitude are code << dropped, less a constant: adding to them
//                       carries into the exponent by itself, up to infinity
//   below               values are n 2^q, the bits of n 2^q + magic are n more than those of magic
#pragma once

#include "common/format.h"
#include "cpu/lanes/lanes.h"

namespace lpk {
namespace {

constexpr uint32_t kInfinityWord = 0x7f800000u;
constexpr uint32_t kNanWord = 0x7fc00000u;

struct WordFormat {
  uint32_t dropped;      // bits of float32's mantissa that the format has not
  uint32_t floor;        // bits of the smallest magnitude of the first kind
  uint32_t small_shift;  // 23 + q, biased: less the exponent, a small magnitude's dropped bits
  float magic;           // 2^(q + 23)
  uint32_t parity;       // whether even codes are odd in bit `dropped`: only without a mantissa
  uint32_t max;          // bits of the largest value
  uint32_t beyond;       // what magnitudes beyond become,
  uint32_t beyond_sign;  // and whether they keep their sign there
  bool one_zero;         // zeros lose their sign
  bool evenly_spaced;    // the small magnitudes are of the first kind too

  explicit WordFormat(const Format& f) {
    const int q = quantum_exponent(f);
    const int least = f.emin > -126 ? f.emin : -126;
    dropped = static_cast<uint32_t>(23 - f.man_bits);
    floor = static_cast<uint32_t>(least + 127) << 23;
    small_shift = static_cast<uint32_t>(q + 150);
    magic = static_cast<float>(power_of_two(q + 23));
    parity = f.man_bits == 0 ? static_cast<uint32_t>(f.bias - 127) & 1u : 0;
    max = bits_of_float(static_cast<float>(f.max));
    beyond = f.overflow == Overflow::kNan ? kNanWord : bits_of_float(static_cast<float>(f.beyond));
    beyond_sign = f.overflow == Overflow::kNan ? 0 : kSignWord;
    one_zero = f.one_zero;
    evenly_spaced = f.emin == -126 && q == -126 - f.man_bits;
  }

  // One spacing below the floor, a largest value not below it, a magic constant that float32 holds.
  static bool fits(const Format& f) {
    if (f.kind != Kind::kFloat || f.is_unsigned || quantum_exponent(f) + 23 > 127) return false;
    return f.emin >= -126 || (f.emin == -127 && f.subnormals && f.max >= 0x1p-126);
  }

 private:
  // The exponent of the distance between values below min_normal; without subnormals the neighbour
  // of min_normal is 0.
  LPK_HD static int quantum_exponent(const Format& f) {
    return f.emin - (f.subnormals ? f.man_bits : 0);
  }
};

}  // namespace
}  // namespace lpk
