// An optimizer's step of parameters, in one pass over each: masters and states are decoded,
// stepped, rounded and encoded again where they lie, and the working copy is written.
#pragma once

#include <cstdint>

#include "common/update.h"
#include "cpu/drivers/tile.h"

namespace lpk {

// Values lie in memory as an ElementType (never float64 here), or as codes of their format, of 8,
// 16 or 32 bits.
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
  int64_t origin;  // position of the first element, in the whole if these are a part
};

struct UpdateArgs {
  const UpdateParameter* parameters;
  int64_t count;
  int lies[kPlaces];
  bool working_is_master;
  bool begins;  // the states
  const int64_t* rounding;
  const double* numbers;
  const int64_t* seed;     // of the step; null where nothing is drawn
  const bool* not_finite;  // true: nothing is done
  const float* scale;
  int threads;
  int64_t stream_bytes;  // from so much memory, read and written, copies go past the caches

  const int64_t* quantizer(int place) const { return rounding + place * kRoundingInts + 2; }
  bool rounds(int place) const { return rounding[place * kRoundingInts + 1] != 0; }
  int64_t key(int place) const { return rounding[place * kRoundingInts]; }
  bool lies_as(int place, ElementType type) const { return lies[place] == static_cast<int>(type); }
  int64_t bytes(int place) const {
    return lies[place] == kCodes ? Codec(quantizer(place)).bits() / 8
                                 : element_bytes(static_cast<ElementType>(lies[place]));
  }
  // A null pointer stands for a tensor that is not there.
  void* memory(const UpdateParameter& parameter, int place) const {
    void* const all[] = {const_cast<void*>(parameter.gradient),
                         working_is_master ? parameter.weight : parameter.master,
                         parameter.states[0], parameter.states[1], parameter.weight};
    return all[place];
  }
};

// The elements begin .. end of one parameter.
struct UpdatePiece {
  const UpdateArgs* args;
  const UpdateParameter* parameter;
  const StepConstants* constants;
  int64_t begin, end;
  bool streamed;

  // The index of an element's draws.
  int64_t place(int64_t index) const { return parameter->origin + index; }
  // Where an element lies.
  void* at(int place, int64_t index) const {
    void* const memory = args->memory(*parameter, place);
    return memory == nullptr ? nullptr : static_cast<char*>(memory) + index * args->bytes(place);
  }
  // How the values of a place are rounded, if they are.
  ElementRounding rounding(int place) const {
    const int64_t* ints = args->quantizer(place);
    const uint64_t seed =
        args->seed == nullptr ? 0 : update_seed(*args->seed, parameter->number, args->key(place));
    return {ints,
            static_cast<Rounding>(ints[kFormatInts]),
            static_cast<int>(ints[kFormatInts + 1]),
            static_cast<Rng>(ints[kFormatInts + 2]),
            seed,
            kSiteQuantize};
  }
};

struct UpdateCounts {
  int64_t asked = 0;
  int64_t unchanged = 0;
};

void update(const UpdateArgs& args);

}  // namespace lpk
