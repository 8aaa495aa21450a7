// lpkernels._C.update: an optimizer's step of many parameters in one call. Adapter:
// lpkernels/backends/cpu.py.
#include "bindings_update.h"

#include <pybind11/stl.h>

#include <vector>

#include "common/check.h"
#include "cpu/update.h"

namespace lpk {
namespace {

// Of a parameter: gradient, weight, master, both states, step, counts, elements, number.
constexpr size_t kParameterInts = 9;

template <class T>
T* pointer(int64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

std::vector<UpdateParameter> parameters_from(const std::vector<int64_t>& ints) {
  LPK_CHECK(ints.size() % kParameterInts == 0, "a parameter of an update has 9 integers");
  std::vector<UpdateParameter> parameters;
  for (size_t i = 0; i < ints.size(); i += kParameterInts) {
    const int64_t* own = ints.data() + i;
    parameters.push_back({pointer<const void>(own[0]),
                          pointer<void>(own[1]),
                          pointer<void>(own[2]),
                          {pointer<void>(own[3]), pointer<void>(own[4])},
                          pointer<float>(own[5]),
                          pointer<int64_t>(own[6]),
                          own[7],
                          own[8]});
  }
  return parameters;
}

// lies: of each place; shared: seed, found, scale, 0 for those that are not there.
void update_parameters(const std::vector<int64_t>& parameters, const std::vector<int>& lies,
                       bool working_is_master, bool begins, const std::vector<int64_t>& rounding,
                       const std::vector<double>& numbers, const std::vector<int64_t>& shared,
                       int threads, int64_t stream_bytes) {
  LPK_CHECK(lies.size() == kPlaces && shared.size() == 3, "an update has 5 places, 3 tensors");
  LPK_CHECK(rounding.size() == kPlaces * kRoundingInts,
            "the roundings of an update are 70 integers");
  LPK_CHECK(numbers.size() == kUpdateNumbers, "the options of an update are 8 numbers");
  const std::vector<UpdateParameter> all = parameters_from(parameters);
  UpdateArgs args{};
  args.parameters = all.data();
  args.count = static_cast<int64_t>(all.size());
  for (size_t place = 0; place < kPlaces; ++place) args.lies[place] = lies[place];
  args.working_is_master = working_is_master;
  args.begins = begins;
  args.rounding = rounding.data();
  args.numbers = numbers.data();
  args.seed = pointer<const int64_t>(shared[0]);
  args.found = pointer<const bool>(shared[1]);
  args.scale = pointer<const float>(shared[2]);
  args.threads = threads;
  args.stream_bytes = stream_bytes;
  const pybind11::gil_scoped_release release;
  update(args);
}

}  // namespace

void register_update(pybind11::module_& module) { module.def("update", &update_parameters); }

}  // namespace lpk
