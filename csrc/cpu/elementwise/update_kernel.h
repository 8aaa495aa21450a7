// An optimizer's step of a piece of a parameter, for the instruction set that this is compiled for.
#pragma once

#include "update_spans.h"

namespace lpk {
namespace {

template <class V>
bool step_piece(const UpdatePiece& piece, UpdateCounts* counts) {
  for (int place = 0; place < kPlaces; ++place) {
    if (!WordFormat::fits(number_format(piece.args->quantizer(place)))) return false;
  }
  UpdateSpans<V>(piece, counts).run();
  return true;
}

}  // namespace
}  // namespace lpk
