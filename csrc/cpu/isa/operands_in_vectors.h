// Blocks aligned by their operands in vectors, where the instruction set has some.

#if defined(__AVX2__) || defined(LPK_NEON)
#include "cpu/sums/ordered/operand_groups.h"
#endif
