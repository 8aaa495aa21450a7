// The steps of a deterministic mode on words of float32 by cells of one width, for tables that need
// few of them: two reads for a value, where WordLadder needs four.
#pragma once

#include "common/table.h"

namespace lpk {

// The word of a magnitude, shifted and kept between `first` and the number of the last cell, is
// its cell. Cells of positive values come first, then as many of negative ones. A cell has a
// threshold, which is NaN or a number beyond the cell where none lies inside, and two values: the
// one below the threshold, and the one from there on.
struct TableCells {
  uint32_t count;  // of cells of each sign; 0: the table needs too many
  uint32_t first;
  int shift;
  const uint32_t* thresholds;
  const uint32_t* values;
  uint32_t infinity[2];  // as in WordLadder
};
TableCells table_cells(const Table& t, Rounding mode);

}  // namespace lpk
