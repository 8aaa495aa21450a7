// An optimizer's step of parameters, in one pass over each: masters and states are decoded,
// stepped, rounded and encoded again where they lie, and the working copy is written.
#pragma once

#include <cstdint>

#include "common/update_element.h"
#include "cpu/drivers/tile.h"

namespace lpk {

// The elements begin .. end of one parameter.
struct UpdatePiece {
  const UpdateArgs* args;
  const UpdateParameter* parameter;
  const StepConstants* constants;
  int64_t begin, end;
  bool streamed;

  // The index of an element's draws.
  int64_t place(int64_t index) const { return parameter->origin + index; }
  uint64_t seed(int place) const {
    return args->seed == nullptr ? 0
                                 : update_seed(*args->seed, parameter->number, args->key(place));
  }
  // Where an element lies.
  void* at(int place, int64_t index) const {
    void* const memory = args->memory(*parameter, place);
    return memory == nullptr ? nullptr : static_cast<char*>(memory) + index * args->bytes(place);
  }
};

struct UpdateCounts {
  int64_t asked = 0;
  int64_t unchanged = 0;
};

void update(const UpdateArgs& args);

}  // namespace lpk
