#include "cpu/sums/grouped/grouped_kernel.h"

namespace lpk {

const GroupedKernel kAvx512Grouped = grouped_row<Vec<8>>;

}  // namespace lpk
