// What the functions of lpkernels._C are given: integers, addresses, seeds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/accumulate.h"
#include "common/check.h"

namespace lpk::bound {

// At most as many integers as an Accumulator has: nothing is allocated. Zeros stand behind them.
class Ints {
 public:
  // Says whether there is room for so many.
  bool resize(size_t size) {
    if (size > kMost) return false;
    size_ = size;
    return true;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* data() const { return values_; }
  int64_t operator[](size_t i) const { return values_[i]; }
  int64_t& operator[](size_t i) { return values_[i]; }

 private:
  static constexpr size_t kMost = lpk::kAccumulatorInts;

  int64_t values_[kMost] = {};
  size_t size_ = 0;
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
            "an accumulator has 37 integers, or 57");
}

}  // namespace lpk::bound
