#include "cpu/sums/scaled/dot_sums.h"

namespace lpk {

bool accumulate_scaled_avx512vnni(const ScaledTile& t) { return run_dot_sums(t); }

}  // namespace lpk
