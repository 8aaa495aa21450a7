#include "cpu/sums/grouped/grouped_kernel.h"

namespace lpk {

const GroupedKernel kScalarGrouped = grouped_row<Vec<1>>;

}  // namespace lpk
