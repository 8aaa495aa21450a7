#include "cpu/sums/scaled/dot_sums.h"
#include "units.h"

namespace lpk {

bool accumulate_dot_products(const ScaledTile& t) { return run_dot_sums(t); }

}  // namespace lpk
