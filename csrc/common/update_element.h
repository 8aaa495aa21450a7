// The arguments of an update of parameters, and the update of one element in every format, for
// scalar code and CUDA.
#pragma once

#include "update.h"

namespace lpk {

// How values lie in memory: as an ElementType (never float64 here), or as codes of their format,
// with 8, 16 or 32 bits each.
constexpr int kFloats = 0;
constexpr int kHalves = 1;
constexpr int kBrainFloats = 2;
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
  const int64_t* seed;  // of the step; null where nothing is drawn
  const bool* found;    // true: nothing is done
  const float* scale;
  int threads;
  int64_t stream_bytes;  // from so much memory, read and written, copies go past the caches

  const int64_t* quantizer(int place) const { return rounding + place * kRoundingInts + 2; }
  bool rounds(int place) const { return rounding[place * kRoundingInts + 1] != 0; }
  int64_t key(int place) const { return rounding[place * kRoundingInts]; }
  int64_t bytes(int place) const {
    if (lies[place] != kCodes) return lies[place] == kFloats ? 4 : 2;
    return Codec(quantizer(place)).bits() / 8;
  }
  // A null pointer stands for a tensor that is not there.
  void* memory(const UpdateParameter& parameter, int place) const {
    void* const all[] = {const_cast<void*>(parameter.gradient),
                         working_is_master ? parameter.weight : parameter.master,
                         parameter.states[0], parameter.states[1], parameter.weight};
    return all[place];
  }
};

// The values of one tensor.
struct UpdatePlace {
  void* memory;
  int bytes;
  bool open;  // float32
  Codec codec;

  UpdatePlace() = default;
  UpdatePlace(const UpdateArgs& args, const UpdateParameter& parameter, int place)
      : memory(args.memory(parameter, place)),
        bytes(static_cast<int>(args.bytes(place))),
        open(args.lies[place] == kFloats) {
    // kind, exponent and mantissa bits, bias; then specials, subnormals and overflow of IEEE.
    const int64_t half[kFormatInts] = {0, 5, 10, 15, 0, 1, 0, 0};
    const int64_t brain[kFormatInts] = {0, 8, 7, 127, 0, 1, 0, 0};
    const bool coded = args.lies[place] == kCodes || open;
    codec = Codec(coded ? args.quantizer(place) : args.lies[place] == kHalves ? half : brain);
  }

  LPK_HD float load(int64_t i) const {
    if (open) return static_cast<const float*>(memory)[i];
    const uint32_t code = bytes == 1   ? static_cast<const uint8_t*>(memory)[i]
                          : bytes == 2 ? static_cast<const uint16_t*>(memory)[i]
                                       : static_cast<const uint32_t*>(memory)[i];
    return canonical_float(codec.decode(code));
  }
  LPK_HD void store(int64_t i, float x) const {
    if (open) {
      static_cast<float*>(memory)[i] = x;
      return;
    }
    const uint32_t code = codec.encode(x);
    if (bytes == 1) static_cast<uint8_t*>(memory)[i] = static_cast<uint8_t>(code);
    if (bytes == 2) static_cast<uint16_t*>(memory)[i] = static_cast<uint16_t>(code);
    if (bytes == 4) static_cast<uint32_t*>(memory)[i] = code;
  }
};

// A parameter's update, without its memory: the constants of its step and the seeds of its draws.
struct UpdateJob {
  UpdatePlace places[kPlaces];
  ElementRule rules[kPlaces];
  int64_t keys[kPlaces];
  UpdateOptions options;
  bool working_is_master, begins;
  const int64_t* seed;
  const bool* found;
  const float* scale;
  const float* step;
  int64_t* counts;
  int64_t count, number, origin;

  UpdateJob(const UpdateArgs& args, const UpdateParameter& parameter)
      : options(update_options(args.numbers)),
        working_is_master(args.working_is_master),
        begins(args.begins),
        seed(args.seed),
        found(args.found),
        scale(args.scale),
        step(parameter.step),
        counts(parameter.counts),
        count(parameter.count),
        number(parameter.number),
        origin(parameter.origin) {
    for (int place = 0; place < kPlaces; ++place) {
      places[place] = UpdatePlace(args, parameter, place);
      rules[place] = ElementRule(args.rounding + place * kRoundingInts);
      keys[place] = args.key(place);
    }
  }

  LPK_HD StepConstants constants() const {
    return step_constants(options, begins, step == nullptr ? 1 : static_cast<int64_t>(*step) + 1);
  }
  LPK_HD uint64_t seed_of(int place) const {
    return seed == nullptr ? 0 : update_seed(*seed, number, keys[place]);
  }
};

LPK_HD void update_element(const UpdateJob& job, const StepConstants& c, const uint64_t* seeds,
                           int64_t i, int64_t* asked, int64_t* unchanged) {
  const int states = job.options.states();
  const int64_t place = job.origin + i;  // what a draw depends on
  float g = job.places[kGrad].load(i);
  if (job.scale != nullptr) g = g / *job.scale;
  g = job.rules[kGrad](g, place, seeds[kGrad]);
  const float before = job.places[kMaster].load(i);
  float w = before;
  float first = states > 0 && !job.begins ? job.places[kFirst].load(i) : 0.0f;
  float second = states > 1 && !job.begins ? job.places[kSecond].load(i) : 0.0f;
  if (c.adam) {
    adam_step<float>(c, g, w, first, second);
  } else {
    sgd_step<float>(c, g, w, first);
  }
  const bool counts = g != 0.0f || !(w == before);
  const float master = job.rules[kMaster](w, place, seeds[kMaster]);
  *asked += counts ? 1 : 0;
  *unchanged += counts && master == before ? 1 : 0;
  if (states > 0) job.places[kFirst].store(i, job.rules[kFirst](first, place, seeds[kFirst]));
  if (states > 1) job.places[kSecond].store(i, job.rules[kSecond](second, place, seeds[kSecond]));
  job.places[kMaster].store(i, master);
  if (!job.working_is_master)
    job.places[kWeight].store(i, job.rules[kWeight](master, place, seeds[kWeight]));
}

}  // namespace lpk
