// lpkernels._C.update: an optimizer's step of many parameters in one call. Adapter:
// lpkernels/backends/cpu.py.
#pragma once

#include <algorithm>
#include <vector>

#include "arguments.h"
#include "cpu/elementwise/update.h"

namespace lpk::bound {

// parameters: ten integers of each: gradient, weight, master, both states, step, counts, elements,
// number, origin; lies: of each place; shared: seed, not_finite, scale. Addresses are 0 for what is
// there.
inline void update_parameters(const std::vector<int64_t>& parameters, const std::vector<int>& lies,
                              bool working_is_master, bool begins,
                              const std::vector<int64_t>& rounding,
                              const std::vector<double>& numbers,
                              const std::vector<int64_t>& shared, int threads,
                              int64_t stream_bytes) {
  constexpr size_t kParameterInts = 10;
  LPK_CHECK(parameters.size() % kParameterInts == 0, "a parameter of an update has 10 integers");
  LPK_CHECK(lies.size() == kPlaces && shared.size() == 3, "an update has 5 places, 3 tensors");
  LPK_CHECK(rounding.size() == kPlaces * kRoundingInts, "roundings of an update: 70 integers");
  LPK_CHECK(numbers.size() == kUpdateNumbers, "the options of an update are 8 numbers");
  std::vector<UpdateParameter> all;
  for (size_t i = 0; i < parameters.size(); i += kParameterInts) {
    const auto at = [&](size_t place) { return static_cast<uintptr_t>(parameters[i + place]); };
    all.push_back({pointer<const void>(at(0)),
                   pointer<void>(at(1)),
                   pointer<void>(at(2)),
                   {pointer<void>(at(3)), pointer<void>(at(4))},
                   pointer<float>(at(5)),
                   pointer<int64_t>(at(6)),
                   parameters[i + 7],
                   parameters[i + 8],
                   parameters[i + 9]});
  }
  UpdateArgs args{};
  args.parameters = all.data();
  args.count = static_cast<int64_t>(all.size());
  std::copy(lies.begin(), lies.end(), args.lies);
  args.working_is_master = working_is_master;
  args.begins = begins;
  args.rounding = rounding.data();
  args.numbers = numbers.data();
  args.seed = pointer<const int64_t>(static_cast<uintptr_t>(shared[0]));
  args.not_finite = pointer<const bool>(static_cast<uintptr_t>(shared[1]));
  args.scale = pointer<const float>(static_cast<uintptr_t>(shared[2]));
  args.threads = threads;
  args.stream_bytes = stream_bytes;
  update(args);
}

template <class Define>
void define_update(const Define& define) {
  define("update", &update_parameters);
}

}  // namespace lpk::bound
