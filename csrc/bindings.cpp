// lpkernels._C: the functions of csrc/module, to which Python gives pointers, sizes, strides and
// integer specs; results are written in place. No torch, and no Python object is touched while a
// function runs (the interpreter lock is released). Adapters: lpkernels/backends/cpu.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings_cuda.h"
#include "cpu/drivers/tile.h"
#include "cpu/isa/processor.h"
#include "cpu/isa/sets.h"
#include "module/elementwise.h"
#include "module/products.h"
#include "module/update.h"

namespace py = pybind11;

namespace pybind11::detail {
// A tuple or list of Python integers is read in place.
template <>
struct type_caster<lpk::bound::Ints> {
  PYBIND11_TYPE_CASTER(lpk::bound::Ints, const_name("Sequence[int]"));

  bool load(handle source, bool) {
    PyObject* from = source.ptr();
    if (!PyTuple_Check(from) && !PyList_Check(from)) return false;
    const auto size = static_cast<size_t>(PySequence_Fast_GET_SIZE(from));
    if (!value.resize(size)) return false;
    PyObject** items = PySequence_Fast_ITEMS(from);
    for (size_t i = 0; i < size; ++i) {
      value[i] = PyLong_AsLongLong(items[i]);
      if (value[i] == -1 && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return false;
      }
    }
    return true;
  }
};
}  // namespace pybind11::detail

namespace {

// Products accumulated by each tier since the last call.
py::dict take_tiers() {
  int64_t counts[static_cast<int>(lpk::Tier::kCount)];
  lpk::take_counts(counts);
  py::dict tiers;
  tiers["hardware"] = counts[0];
  tiers["certified"] = counts[1];
  tiers["float"] = counts[2];
  tiers["double"] = counts[3];
  return tiers;
}

std::string isa() { return lpk::kernels().isa; }

std::vector<std::string> compiled_sets() {
  std::vector<std::string> names;
  for (const lpk::Kernels* set : lpk::compiled_kernels()) names.push_back(set->isa);
  return names;
}

std::vector<std::string> sets_of_processor() {
  const std::vector<const char*> names = lpk::sets_of_processor();
  return {names.begin(), names.end()};
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() =
      "lpkernels kernels: pointers and integers in, results in place; used through "
      "lpkernels.backends";
  m.attr("compiler") = LPK_COMPILER;
  m.def("isa", &isa);
  m.def("compiled_sets", &compiled_sets);
  m.def("sets_of_processor", &sets_of_processor);
  m.def("take_tiers", &take_tiers);
  const auto define = [&m](const char* name, auto function) {
    m.def(name, function, py::call_guard<py::gil_scoped_release>());
  };
  lpk::bound::define_elementwise(define);
  lpk::bound::define_products(define);
  lpk::bound::define_update(define);
#if defined(LPK_CUDA)
  lpk::register_cuda(m);
#endif
}
