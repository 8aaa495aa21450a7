#include "cpu/sums/grouped/grouped_kernel.h"

namespace lpk {

void grouped_row_avx2(const GroupedRule& rule, const GroupedRow& row, const GroupedPanel& panel) {
  grouped_row<Vec<4>>(rule, row, panel);
}

}  // namespace lpk
