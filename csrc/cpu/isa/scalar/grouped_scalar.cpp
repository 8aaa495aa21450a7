#include "cpu/sums/grouped/grouped_kernel.h"

namespace lpk {

void grouped_row_scalar(const GroupedRule& rule, const GroupedRow& row, const GroupedPanel& panel) {
  grouped_row<Vec<1>>(rule, row, panel);
}

}  // namespace lpk
