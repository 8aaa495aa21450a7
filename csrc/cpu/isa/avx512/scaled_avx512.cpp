#include "cpu/sums/scaled/scaled_kernel.h"

namespace lpk {

void accumulate_scaled_avx512(const ScaledTile& t) {
  if (!has_vnni() || !accumulate_scaled_avx512vnni(t)) run_scaled_kernel(t, FloatSums{t});
}

}  // namespace lpk
