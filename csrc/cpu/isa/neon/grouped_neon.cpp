#include "cpu/sums/grouped/grouped_kernel.h"

namespace lpk {

void grouped_row_neon(const GroupedRule& rule, const GroupedRow& row, const GroupedPanel& panel) {
  grouped_row<Vec<2>>(rule, row, panel);
}

}  // namespace lpk
