#include "cpu/elementwise/update_kernel.h"

namespace lpk {

bool update_piece_neon(const UpdatePiece& piece, UpdateCounts* counts) {
  return update_piece<Bits32<4>>(piece, counts);
}

}  // namespace lpk
