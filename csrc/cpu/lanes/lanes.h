// The lanes of the instruction set that a file is compiled for. Rules ask `Isa` what it can do; its
// instructions are in the file of the instruction set, and nowhere else.
#pragma once

#if defined(__AVX512F__)
#include "avx512.h"
#elif defined(__AVX2__)
#include "avx2.h"
#elif defined(LPK_NEON)
#include "neon.h"
#else
#include "portable.h"
#endif

namespace lpk {

#if defined(__AVX512F__)
using Isa = Avx512;
#elif defined(__AVX2__)
using Isa = Avx2;
#elif defined(LPK_NEON)
using Isa = Neon;
#else
using Isa = Portable;
#endif

}  // namespace lpk
