#include "cpu/sums/grouped/grouped_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

void grouped_row(const GroupedRule& rule, const GroupedRow& row, const GroupedPanel& panel) {
  run_grouped_row<DoubleVector>(rule, row, panel);
}

}  // namespace lpk::LPK_ISA
