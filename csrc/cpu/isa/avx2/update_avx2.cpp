#include "cpu/elementwise/update_kernel.h"

namespace lpk {

bool update_piece_avx2(const UpdatePiece& piece, UpdateCounts* counts) {
  return update_piece<Bits32<8>>(piece, counts);
}

}  // namespace lpk
