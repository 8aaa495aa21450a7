// The vectors of blocks aligned by their operands: lanes in float32 or double, and bytes.
#pragma once

#include "cpu/lanes/lanes.h"
#include "cpu/sums/certified/operand_range.h"

namespace lpk {
namespace {

// Vectors of the processor: kVectorBytes / sizeof(T) lanes.
constexpr int kVectorBytes = 4 * Isa::kWords;
// The most vectors of lanes taken at once, a panel at least: as many pairs of sums hide the latency
// of one.
template <class T>
constexpr int kMostVectors = std::max<int>(4, kPanel * sizeof(T) / kVectorBytes);
// From one half of B's lanes to the other, in bytes.
template <class T>
constexpr int kHalfBytes = kMostVectors<T> * kVectorBytes;

template <class T>
struct OperandVector;
template <>
struct OperandVector<float> {
  typedef float F __attribute__((vector_size(kVectorBytes)));
  typedef int32_t I __attribute__((vector_size(kVectorBytes)));
  using Word = int32_t;
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr Precision kPrecision = single_precision();
  LPK_HD static F fma(F a, F b, F c) {
    return (F)Isa::fma((Isa::Floats)a, (Isa::Floats)b, (Isa::Floats)c);
  }
  LPK_HD static F all(float x) { return (F)Isa::all(x); }
  LPK_HD static F max(F a, F b) { return (F)Isa::max((Isa::Floats)a, (Isa::Floats)b); }
  // One byte for each word of a vector, widened to it.
  LPK_HD static I bytes(const int8_t* p) { return (I)Isa::bytes_as_words(p); }
  LPK_HD static F load_sums(const float* p) { return load<F>(p); }
  LPK_HD static void store_sums(float* p, F x) { store(p, x); }
};
template <>
struct OperandVector<double> {
  using V = Vec<Isa::kDoubles>;
  using F = V::D;
  using I = V::I;
  using Word = int64_t;
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr Precision kPrecision = double_precision();
  LPK_HD static F fma(F a, F b, F c) {
    return (F)Isa::fma((Isa::Doubles)a, (Isa::Doubles)b, (Isa::Doubles)c);
  }
  LPK_HD static F all(double x) { return Lanes<F>::all(x); }
  LPK_HD static F max(F a, F b) { return Lanes<F>::max(a, b); }
  LPK_HD static I bytes(const int8_t* p) { return (I)Isa::bytes_as_long_words(p); }
  LPK_HD static F load_sums(const float* p) { return load_floats<V>(p); }
  LPK_HD static void store_sums(float* p, F x) { store_floats<V>(p, x); }
};

// Bytes of `kCount` lanes.
template <int kCount>
struct ByteVector {
  typedef int8_t B __attribute__((vector_size(kCount)));
  typedef int32_t Words __attribute__((vector_size(kCount)));
  LPK_HD static B max(B a, B b) { return a > b ? a : b; }
  // Four copies of a byte.
  LPK_HD static B all(int32_t copies) { return (B)(Words{} + copies); }
};

}  // namespace
}  // namespace lpk
