#include "update.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/drivers/parallel.h"
#include "cpu/drivers/tile.h"

namespace lpk {
namespace {

// Elements a thread takes at a time, counted in the whole, which a parameter may be a part of:
// their random words have one row key.
constexpr int64_t kGrain = 65536;
// Fewer elements are stepped sooner than another thread is woken.
constexpr int64_t kWorthThreads = 2 * kGrain;

// The values of one place of an update, one at a time: every format and mode.
class PlaceValues {
 public:
  PlaceValues(const UpdatePiece& piece, int place)
      : memory_(static_cast<char*>(piece.at(place, 0))),
        bytes_(static_cast<size_t>(piece.args->bytes(place))),
        is_float_(piece.args->lies_as(place, ElementType::kFloat32)),
        rounds_(piece.args->rounds(place)),
        origin_(piece.place(0)),
        rounding_(piece.rounding(place)),
        format_(number_format(rounding_.format)) {
    // kind, exponent and mantissa bits, bias; then specials, subnormals and overflow of IEEE.
    constexpr int64_t kHalf[kFormatInts] = {0, 5, 10, 15, 0, 1, 0, 0};
    constexpr int64_t kBrain[kFormatInts] = {0, 8, 7, 127, 0, 1, 0, 0};
    codec_ = Codec(piece.args->lies_as(place, ElementType::kFloat16)    ? kHalf
                   : piece.args->lies_as(place, ElementType::kBfloat16) ? kBrain
                                                                        : rounding_.format);
  }

  float load(int64_t i) const {
    uint32_t code = 0;
    std::memcpy(&code, memory_ + i * static_cast<int64_t>(bytes_), bytes_);
    return is_float_ ? float_of_bits(code) : canonical_float(codec_.decode(code));
  }
  void store(int64_t i, float x) const {
    const uint32_t code = is_float_ ? bits_of_float(x) : codec_.encode(x);
    std::memcpy(memory_ + i * static_cast<int64_t>(bytes_), &code, bytes_);
  }
  // Every NaN becomes 0x7fc00000.
  float rounded(int64_t i, float x) const {
    if (!rounds_) return canonical_float(x);
    double threshold = 0;
    if (rounding_.rounding == Rounding::kStochastic) {
      const uint32_t draw = random_draw(rounding_.rng, rounding_.seed, rounding_.site, 0, 0,
                                        static_cast<uint64_t>(origin_ + i), rounding_.random_bits);
      threshold = stochastic_threshold<double>(draw, rounding_.random_bits);
    }
    return canonical_float(round_to<double>(x, format_, rounding_.rounding, threshold));
  }
  void store_rounded(int64_t i, float x) const { store(i, rounded(i, x)); }

 private:
  char* memory_;
  size_t bytes_;
  bool is_float_, rounds_;
  int64_t origin_;
  ElementRounding rounding_;
  Format format_;
  Codec codec_;
};

// Every format, one element after the other.
void update_elements(const UpdatePiece& piece, UpdateCounts* counts) {
  const StepConstants& c = *piece.constants;
  const float* scale = piece.args->scale;
  const int states = update_options(piece.args->numbers).states();
  const PlaceValues gradient(piece, kGrad), master(piece, kMaster), first(piece, kFirst),
      second(piece, kSecond), weight(piece, kWeight);
  for (int64_t i = piece.begin; i < piece.end; ++i) {
    const float unscaled = scale != nullptr ? gradient.load(i) / *scale : gradient.load(i);
    const float g = gradient.rounded(i, unscaled), before = master.load(i);
    float w = before;
    float m = states > 0 && !c.begins ? first.load(i) : 0.0f;
    float v = states > 1 && !c.begins ? second.load(i) : 0.0f;
    if (c.adam) {
      adam_step<float>(c, g, w, m, v);
    } else {
      sgd_step<float>(c, g, w, m);
    }
    const bool asked = g != 0.0f || !(w == before);
    const float after = master.rounded(i, w);
    counts->asked += asked ? 1 : 0;
    counts->unchanged += asked && after == before ? 1 : 0;
    if (states > 0) first.store_rounded(i, m);
    if (states > 1) second.store_rounded(i, v);
    master.store(i, after);
    if (!piece.args->working_is_master) weight.store_rounded(i, after);
  }
}

struct Work {
  int64_t parameter;
  int64_t begin;
};

int64_t grain_end(const UpdateParameter& parameter, int64_t begin) {
  const int64_t behind = (parameter.origin + begin) % kGrain;
  return std::min(begin + kGrain - behind, parameter.count);
}

int64_t bytes_moved(const UpdateArgs& args, int64_t elements) {
  const UpdatePiece piece{&args, args.parameters, nullptr, 0, 0, false};
  int64_t bytes = 0;
  for (int place = 0; place < kPlaces; ++place)
    bytes += piece.at(place, 0) == nullptr ? 0 : args.bytes(place);
  return bytes * elements;
}

}  // namespace

void update(const UpdateArgs& args) {
  if (args.count == 0 || (args.not_finite != nullptr && *args.not_finite)) return;
  const FloatEnvironment environment;
  const UpdateOptions options = update_options(args.numbers);
  std::vector<StepConstants> constants;
  std::vector<Work> work;
  int64_t elements = 0;
  for (int64_t p = 0; p < args.count; ++p) {
    const UpdateParameter& parameter = args.parameters[p];
    const int64_t steps_before =
        parameter.step == nullptr ? 0 : static_cast<int64_t>(*parameter.step);
    constants.push_back(step_constants(options, args.begins, steps_before + 1));
    elements += parameter.count;
    for (int64_t begin = 0; begin < parameter.count; begin = grain_end(parameter, begin))
      work.push_back({p, begin});
  }
  const bool streamed = bytes_moved(args, elements) >= args.stream_bytes;
  const int threads = elements < kWorthThreads ? 1 : args.threads;
  UpdateKernel* const kernel = kernels().families.update;
  parallel_for(static_cast<int64_t>(work.size()), threads, [&](int64_t i) {
    const Work& mine = work[static_cast<size_t>(i)];
    const UpdateParameter& parameter = args.parameters[mine.parameter];
    const UpdatePiece piece{&args,
                            &parameter,
                            &constants[static_cast<size_t>(mine.parameter)],
                            mine.begin,
                            grain_end(parameter, mine.begin),
                            streamed};
    UpdateCounts counts;
    if (!kernel(piece, &counts)) update_elements(piece, &counts);
    __atomic_fetch_add(&parameter.counts[0], counts.asked, __ATOMIC_RELAXED);
    __atomic_fetch_add(&parameter.counts[1], counts.unchanged, __ATOMIC_RELAXED);
  });
  for (int64_t p = 0; p < args.count; ++p) {
    if (args.parameters[p].step != nullptr) *args.parameters[p].step += 1.0f;
  }
}

}  // namespace lpk
