#include "cpu/elementwise/update_kernel.h"

namespace lpk {

bool update_piece_avx512(const UpdatePiece& piece, UpdateCounts* counts) {
  return update_piece<Bits32<16>>(piece, counts);
}

}  // namespace lpk
