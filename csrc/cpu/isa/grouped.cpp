#include "cpu/sums/grouped/grouped_kernel.h"
#include "units.h"

namespace lpk::LPK_ISA {

void grouped_row(const GroupedRule& rule, const GroupedSide& row, const GroupedSide& panel,
                 double* sums) {
  GroupedSums<DoubleVector>(rule, row, panel, sums).run();
}

}  // namespace lpk::LPK_ISA
