#include "cpu/sums/grouped/grouped_kernel.h"

namespace lpk {

const GroupedKernel kAvx2Grouped = grouped_row<Vec<4>>;

}  // namespace lpk
