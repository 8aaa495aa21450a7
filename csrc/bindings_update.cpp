// lpkernels._C.update: an optimizer's step of many parameters in one call. Adapter:
// lpkernels/backends/cpu.py.
#include "bindings_update.h"

#include "cpu/elementwise/update.h"

namespace lpk {
namespace {

void update_parameters(const std::vector<int64_t>& parameters, const std::vector<int>& lies,
                       bool working_is_master, bool begins, const std::vector<int64_t>& rounding,
                       const std::vector<double>& numbers, const std::vector<int64_t>& shared,
                       int threads, int64_t stream_bytes) {
  Update given(parameters, lies, working_is_master, begins, rounding, numbers, shared);
  given.args.threads = threads;
  given.args.stream_bytes = stream_bytes;
  const pybind11::gil_scoped_release release;
  update(given.args);
}

}  // namespace

void register_update(pybind11::module_& module) { module.def("update", &update_parameters); }

}  // namespace lpk
