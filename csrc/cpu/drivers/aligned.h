// Arrays that start at a cache line, so that no vector of theirs lies across two; arrays that a
// thread keeps, and that grow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace lpk {

template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kLine));
  }
  void deallocate(T* p, std::size_t) { ::operator delete(p, kLine); }
};
template <class T, class U>
bool operator==(const LineAllocator<T>&, const LineAllocator<U>&) {
  return true;
}
template <class T, class U>
bool operator!=(const LineAllocator<T>&, const LineAllocator<U>&) {
  return false;
}

// Makes room for at least `size` elements in each of some arrays.
template <class... Arrays>
void grow(int64_t size, Arrays&... arrays) {
  const auto fit = [size](auto& array) {
    if (static_cast<int64_t>(array.size()) < size) array.resize(static_cast<size_t>(size));
  };
  (fit(arrays), ...);
}

using AlignedFloats = std::vector<float, LineAllocator<float>>;

}  // namespace lpk
