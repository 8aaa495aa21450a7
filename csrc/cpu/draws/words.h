// Random words by the vector: as many 32-bit lanes as a register holds.
#pragma once

#include "cpu/lanes/lanes.h"

namespace lpk {
namespace {

constexpr int kWordLanes = Isa::kWords;
using Words = Bits32<kWordLanes>::U;

// Philox4x32-10 in every lane (rng.h has the scalar form): c becomes the four words.
LPK_HD void philox_lanes(Words (&c)[4], uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const auto p0 = wide_product<Bits32<kWordLanes>>(c[0], 0xD2511F53u);
    const auto p1 = wide_product<Bits32<kWordLanes>>(c[2], 0xCD9E8D57u);
    c[0] = p1.high ^ c[1] ^ k0;
    c[2] = p0.high ^ c[3] ^ k1;
    c[1] = p1.low;
    c[3] = p0.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

}  // namespace
}  // namespace lpk
