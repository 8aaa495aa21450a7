// lpkernels._C.update: an optimizer's step of many parameters in one call. Adapter:
// lpkernels/backends/cpu.py.
#pragma once

#include <vector>

#include "common/check.h"
#include "common/update_element.h"
#include "cpu/elementwise/update.h"

namespace lpk::bound {

// An update as Python gives it.
//
// parameters: ten integers of each: gradient, weight, master, both states, step, counts, elements,
// number, origin; lies: of each place; shared: seed, found, scale. Addresses are 0 for what is not
// there.
class Update {
 public:
  Update(const std::vector<int64_t>& parameters, const std::vector<int>& lies,
         bool working_is_master, bool begins, const std::vector<int64_t>& rounding,
         const std::vector<double>& numbers, const std::vector<int64_t>& shared)
      : rounding_(rounding), numbers_(numbers) {
    LPK_CHECK(parameters.size() % kParameterInts == 0, "a parameter of an update has 10 integers");
    LPK_CHECK(lies.size() == kPlaces && shared.size() == 3, "an update has 5 places, 3 tensors");
    LPK_CHECK(rounding.size() == kPlaces * kRoundingInts, "roundings of an update: 70 integers");
    LPK_CHECK(numbers.size() == kUpdateNumbers, "the options of an update are 8 numbers");
    for (size_t i = 0; i < parameters.size(); i += kParameterInts) {
      const int64_t* own = parameters.data() + i;
      parameters_.push_back({at<const void>(own[0]),
                             at<void>(own[1]),
                             at<void>(own[2]),
                             {at<void>(own[3]), at<void>(own[4])},
                             at<float>(own[5]),
                             at<int64_t>(own[6]),
                             own[7],
                             own[8],
                             own[9]});
    }
    for (int place = 0; place < kPlaces; ++place)
      args.lies[place] = lies[static_cast<size_t>(place)];
    args.parameters = parameters_.data();
    args.count = static_cast<int64_t>(parameters_.size());
    args.working_is_master = working_is_master;
    args.begins = begins;
    args.rounding = rounding_.data();
    args.numbers = numbers_.data();
    args.seed = at<const int64_t>(shared[0]);
    args.found = at<const bool>(shared[1]);
    args.scale = at<const float>(shared[2]);
  }
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  // Points into this object.
  UpdateArgs args{};

 private:
  static constexpr size_t kParameterInts = 10;

  template <class T>
  static T* at(int64_t address) {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
  }

  std::vector<UpdateParameter> parameters_;
  std::vector<int64_t> rounding_;
  std::vector<double> numbers_;
};

inline void update_parameters(const std::vector<int64_t>& parameters, const std::vector<int>& lies,
                              bool working_is_master, bool begins,
                              const std::vector<int64_t>& rounding,
                              const std::vector<double>& numbers,
                              const std::vector<int64_t>& shared, int threads,
                              int64_t stream_bytes) {
  Update given(parameters, lies, working_is_master, begins, rounding, numbers, shared);
  given.args.threads = threads;
  given.args.stream_bytes = stream_bytes;
  update(given.args);
}

template <class Define>
void define_update(const Define& define) {
  define("update", &update_parameters);
}

}  // namespace lpk::bound
