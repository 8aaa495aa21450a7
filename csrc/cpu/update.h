// An optimizer's step of parameters, in one pass over each: masters and states are decoded,
// stepped, rounded and encoded again where they lie, and the working copy is written.
#pragma once

#include <cstdint>

#include "../common/update.h"
#include "element_types.h"

namespace lpk {

// How values lie in memory: as an ElementType, or as codes of their format, of 8, 16 or 32 bits.
constexpr int kCodes = 4;

struct UpdateParameter {
  const void* gradient;
  void* weight;
  void* master;  // not read where the working copy is the master
  void* states[2];
  float* step;      // how many steps were made; null where nobody counts
  int64_t* counts;  // asked, unchanged
  int64_t count;
  int64_t number;
};

struct UpdateArgs {
  const UpdateParameter* parameters;
  int64_t count;
  int lies[kPlaces];  // an ElementType or kCodes
  bool working_is_master;
  bool begins;  // the states
  const int64_t* rounding;
  const double* numbers;
  const int64_t* seed;  // of the step; null where nothing is drawn
  const bool* found;    // true: nothing is done
  const float* scale;
  int threads;
  int64_t stream_bytes;
};

// Of one parameter, elements begin .. end.
struct UpdatePiece {
  const UpdateArgs* args;
  const UpdateParameter* parameter;
  const StepConstants* constants;
  int64_t begin, end;
  bool streamed;

  uint64_t seed(int place) const {
    const int64_t key = args->rounding[place * kRoundingInts];
    return args->seed == nullptr ? 0 : update_seed(*args->seed, parameter->number, key);
  }
  const int64_t* quantizer(int place) const { return args->rounding + place * kRoundingInts + 2; }
  bool rounds(int place) const { return args->rounding[place * kRoundingInts + 1] != 0; }
  // Where an element lies.
  void* at(int place, int64_t index) const {
    void* const memory[] = {const_cast<void*>(parameter->gradient),
                            args->working_is_master ? parameter->weight : parameter->master,
                            parameter->states[0], parameter->states[1], parameter->weight};
    return memory[place] == nullptr ? nullptr
                                    : static_cast<char*>(memory[place]) + index * bytes(place);
  }
  int64_t bytes(int place) const {
    if (args->lies[place] != kCodes)
      return element_bytes(static_cast<ElementType>(args->lies[place]));
    const int64_t* format = quantizer(place);
    return (1 + format[1] + format[2]) / 8;
  }
};

struct UpdateCounts {
  int64_t asked = 0;
  int64_t unchanged = 0;
};

// Of the instruction set: false, and nothing done, for a format that its lanes do not take.
using UpdateKernel = bool(const UpdatePiece&, UpdateCounts*);
UpdateKernel update_piece_scalar;
UpdateKernel update_piece_avx2;
UpdateKernel update_piece_avx512;

void update(const UpdateArgs& args);

}  // namespace lpk
