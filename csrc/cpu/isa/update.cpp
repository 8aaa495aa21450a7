#include "cpu/elementwise/update_spans.h"
#include "units.h"

namespace lpk::LPK_ISA {

bool update_piece(const UpdatePiece& piece, UpdateCounts* counts) {
  return step_piece<WordVector>(piece, counts);
}

}  // namespace lpk::LPK_ISA
