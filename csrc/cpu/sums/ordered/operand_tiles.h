// Tiles of blocks aligned by their operands, in operands_<isa>.cpp.
#pragma once

#include "cpu/drivers/tile.h"

namespace lpk {

void accumulate_operands_scalar(const Tile& t);
void accumulate_operands_avx2(const Tile& t);
void accumulate_operands_avx512(const Tile& t);
void accumulate_operands_neon(const Tile& t);

}  // namespace lpk
