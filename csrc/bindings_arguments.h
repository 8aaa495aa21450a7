// How the module reads its arguments: integers, addresses, seeds.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "common/accumulate.h"
#include "common/check.h"

namespace lpk::bound {

// A tuple or list of at most as many Python integers as an Accumulator has: read in place, nothing
// allocated. Zeros stand behind them.
class Ints {
 public:
  static constexpr Py_ssize_t kMost = lpk::kAccumulatorInts;

  bool read(PyObject* from) {
    if (!PyTuple_Check(from) && !PyList_Check(from)) return false;
    size_ = PySequence_Fast_GET_SIZE(from);
    if (size_ > kMost) return false;
    PyObject** items = PySequence_Fast_ITEMS(from);
    for (Py_ssize_t i = 0; i < size_; ++i) {
      values_[i] = PyLong_AsLongLong(items[i]);
      if (values_[i] == -1 && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return false;
      }
    }
    return true;
  }

  size_t size() const { return static_cast<size_t>(size_); }
  bool empty() const { return size_ == 0; }
  const int64_t* data() const { return values_; }
  int64_t operator[](size_t i) const { return values_[i]; }

 private:
  int64_t values_[kMost] = {};
  Py_ssize_t size_ = 0;
};

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Seeds are int64 in torch and 64 random bits here.
inline uint64_t role_seed(int64_t seed, int64_t role) {
  return lpk::derive_seed(static_cast<uint64_t>(seed), static_cast<uint64_t>(role));
}

inline void check_accumulator(const Ints& ints) {
  LPK_CHECK(ints.size() == lpk::kPlainAccumulatorInts || ints.size() == lpk::kAccumulatorInts,
            "an accumulator has 35 integers, or 54");
}

}  // namespace lpk::bound

namespace pybind11::detail {
template <>
struct type_caster<lpk::bound::Ints> {
  PYBIND11_TYPE_CASTER(lpk::bound::Ints, const_name("Sequence[int]"));
  bool load(handle from, bool) { return value.read(from.ptr()); }
};
}  // namespace pybind11::detail
