// lpkernels._C.cuda_update: device pointers in, nothing out. Adapter:
// lpkernels/backends/cuda/_update.py.
#include "bindings_update.h"
#include "cuda/elementwise/update.h"

namespace lpk {
namespace {

void cuda_update(const std::vector<int64_t>& parameters, const std::vector<int>& lies,
                 bool working_is_master, bool begins, const std::vector<int64_t>& rounding,
                 const std::vector<double>& numbers, const std::vector<int64_t>& shared,
                 uintptr_t stream) {
  const Update given(parameters, lies, working_is_master, begins, rounding, numbers, shared);
  const pybind11::gil_scoped_release release;
  cuda::update(given.args, reinterpret_cast<void*>(stream));
}

}  // namespace

void register_cuda_update(pybind11::module_& module) { module.def("cuda_update", &cuda_update); }

}  // namespace lpk
