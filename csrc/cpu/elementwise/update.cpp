#include "update.h"

#include <algorithm>
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

// Every format, one element after the other.
void update_elements(const UpdatePiece& piece, UpdateCounts* counts) {
  const UpdateJob job(*piece.args, *piece.parameter);
  uint64_t seeds[kPlaces];
  for (int place = 0; place < kPlaces; ++place) seeds[place] = job.seed_of(place);
  for (int64_t i = piece.begin; i < piece.end; ++i)
    update_element(job, *piece.constants, seeds, i, &counts->asked, &counts->unchanged);
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
  if (args.count == 0 || (args.found != nullptr && *args.found)) return;
  const FloatEnvironment environment;
  const UpdateOptions options = update_options(args.numbers);
  std::vector<StepConstants> constants;
  std::vector<Work> work;
  int64_t elements = 0;
  for (int64_t p = 0; p < args.count; ++p) {
    const UpdateParameter& parameter = args.parameters[p];
    const int64_t made = parameter.step == nullptr ? 0 : static_cast<int64_t>(*parameter.step);
    constants.push_back(step_constants(options, args.begins, made + 1));
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
