#include "cpu/elementwise/update_kernel.h"

namespace lpk {

bool update_piece_scalar(const UpdatePiece& piece, UpdateCounts* counts) {
  return update_piece<Bits32<1>>(piece, counts);
}

}  // namespace lpk
