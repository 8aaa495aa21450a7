#include "hadamard.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "block_kernels.h"
#include "cpu/drivers/parallel.h"
#include "cpu/drivers/tile.h"

namespace lpk {
namespace {

constexpr int kLanes = kHadamardLanes;
constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;

// An integer of 32-bit digits, the lowest one first.
template <int kDigits>
struct Digits {
  uint32_t digit[kDigits] = {};

  bool zero() const {
    return std::all_of(digit, digit + kDigits, [](uint32_t d) { return d == 0; });
  }
  // The number of bits; 0 for 0.
  int length() const {
    int top = kDigits - 1;
    while (top > 0 && digit[top] == 0) --top;
    return digit[top] == 0 ? 0 : 32 * top + 32 - __builtin_clz(digit[top]);
  }
};

// A sum of float32 values in units of 2^-149, as two's complement: 128 values stay below 2^284.
struct Sum : Digits<10> {
  static constexpr int kDigits = 10;

  static Sum of(uint32_t bits) {
    const uint32_t field = (bits & kMagnitude) >> 23, fraction = bits & 0x7fffffu;
    const int shift = field == 0 ? 0 : static_cast<int>(field) - 1;
    const uint64_t wide = uint64_t{fraction | (field == 0 ? 0 : 0x800000u)} << shift % 32;
    Sum sum;
    sum.digit[shift / 32] = static_cast<uint32_t>(wide);
    sum.digit[shift / 32 + 1] = static_cast<uint32_t>(wide >> 32);
    return (bits & ~kMagnitude) != 0 ? Sum{} - sum : sum;
  }
  bool negative() const { return digit[kDigits - 1] >> 31 != 0; }

  friend Sum operator+(const Sum& a, const Sum& b) { return added(a, b, 0, 0); }
  // a + ~b + 1
  friend Sum operator-(const Sum& a, const Sum& b) { return added(a, b, ~0u, 1); }

 private:
  static Sum added(const Sum& a, const Sum& b, uint32_t flip, uint64_t carry) {
    Sum sum;
    for (int i = 0; i < kDigits; ++i) {
      carry += uint64_t{a.digit[i]} + (b.digit[i] ^ flip);
      sum.digit[i] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    return sum;
  }
};

Digits<20> square(const Sum& a) {
  Digits<20> product;
  for (int i = 0; i < Sum::kDigits; ++i) {
    uint64_t carry = 0;
    for (int j = 0; j < Sum::kDigits; ++j) {
      carry += uint64_t{a.digit[i]} * a.digit[j] + product.digit[i + j];
      product.digit[i + j] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    product.digit[i + Sum::kDigits] = static_cast<uint32_t>(carry);
  }
  return product;
}

// sum / sqrt(2^steps) in bfloat16, +0 for 0.
//
// Its square is P 2^-(298 + steps), P an integer. The floor of twice the quotient, in units of the
// result's last place, is the root of P's upper bits; whether it is odd says which side is nearer.
float quotient(const Sum& sum, int steps) {
  const Digits<20> p = square(sum.negative() ? Sum{} - sum : sum);
  if (p.zero()) return 0;
  constexpr int kUnit = -149, kPlaces = 7, kLeast = -133;
  const int place = std::max(((p.length() - 1 - steps) >> 1) + kUnit - kPlaces, kLeast);
  const int shift = steps - 2 * kUnit + 2 * place - 2;
  Digits<20> lower = p;
  uint64_t upper = 0;
  for (int i = 19; i >= shift / 32; --i) {
    upper = upper << 32 | p.digit[i];
    lower.digit[i] = i == shift / 32 ? p.digit[i] & ((uint32_t{1} << shift % 32) - 1) : 0;
  }
  upper >>= shift % 32;
  const auto twice = static_cast<uint64_t>(std::sqrt(static_cast<double>(upper)));
  const bool tie = twice % 2 == 1 && twice * twice == upper && lower.zero();
  const uint64_t count = (twice + 1) / 2, even = count - count % 2;
  const double magnitude = std::ldexp(static_cast<double>(tie ? even : count), place);
  return static_cast<float>(sum.negative() ? -magnitude : magnitude);
}

// r H by pairs.
template <class T>
void multiply_sylvester(T* r, int size) {
  for (int half = 1; half < size; half *= 2) {
    for (int i = 0; i < size; ++i) {
      if ((i & half) != 0) continue;
      const T a = r[i], b = r[i + half];
      r[i] = a + b;
      r[i + half] = a - b;
    }
  }
}

// One run of a tile, whatever its values.
void transform_exactly(const HadamardTile& t, int run) {
  uint32_t words[kMaxHadamard];
  bool finite = true;
  for (int i = 0; i < t.size; ++i) {
    words[i] = bits_of_float(t.x[i * t.x_stride + run]) ^ t.signs[i];
    finite = finite && (words[i] & kMagnitude) < kInfinity;
  }
  if (finite) {
    Sum sums[kMaxHadamard];
    for (int i = 0; i < t.size; ++i) sums[i] = Sum::of(words[i]);
    multiply_sylvester(sums, t.size);
    const int steps = __builtin_ctz(static_cast<unsigned>(t.size));
    for (int i = 0; i < t.size; ++i) t.y[i * t.y_stride + run] = quotient(sums[i], steps);
    return;
  }
  // Infinities of one sign stay; infinities of both signs, and NaN, make NaN, as in any addition.
  double sums[kMaxHadamard];
  for (int i = 0; i < t.size; ++i) sums[i] = float_of_bits(words[i]);
  multiply_sylvester(sums, t.size);
  for (int i = 0; i < t.size; ++i) t.y[i * t.y_stride + run] = canonical_float(sums[i]);
}

// Values of runs in one piece of memory that are transformed together, and values that a thread
// takes at a time.
constexpr int64_t kPiece = 1 << 12, kGrain = 1 << 16;

class Transform {
 public:
  Transform(const HadamardArgs& args, bool streamed)
      : args_(args), streamed_(streamed), kernels_(kernels()), work_(*kernels_.families.hadamard) {}

  // `runs` runs, each one piece of memory, one behind the other from element `begin` on; at most
  // kPiece values.
  void along(int64_t begin, int runs) {
    const int size = args_.size;
    const float* x = static_cast<const float*>(args_.x) + begin;
    float* y = args_.y + begin;
    if (args_.x_type != ElementType::kFloat32) {
      widen(begin, int64_t{runs} * size, wide_);
      x = wide_;
    }
    if (work_.one_by_one({x, y, runs, size, args_.signs, streamed_})) return;
    for (int first = 0; first < runs; first += kLanes) {
      const int64_t offset = int64_t{first} * size;
      const int some = std::min(kLanes, runs - first);
      kernels_.transpose(x + offset, size, some, size, x_, kLanes);
      run({x_, kLanes, y_, kLanes, size, args_.signs}, some);
      kernels_.transpose(y_, kLanes, size, some, y + offset, size);
    }
  }

  // `runs` runs side by side, their values `inner` apart.
  void across(int64_t begin, int runs) {
    const int64_t inner = args_.inner;
    HadamardTile tile{x_, kLanes, y_, kLanes, args_.size, args_.signs};
    if (args_.x_type == ElementType::kFloat32 && runs == kLanes) {
      tile.x = static_cast<const float*>(args_.x) + begin;
      tile.x_stride = inner;
    } else {
      for (int i = 0; i < args_.size; ++i) widen(begin + i * inner, runs, x_ + i * kLanes);
    }
    if (runs == kLanes) {
      tile.y = args_.y + begin;
      tile.y_stride = inner;
      return run(tile, runs);
    }
    run(tile, runs);
    for (int i = 0; i < args_.size; ++i)
      std::memcpy(args_.y + begin + i * inner, y_ + i * kLanes, runs * sizeof(float));
  }

 private:
  // Elements from row-major place `begin` on as float32; vectors reach beyond the last one.
  void widen(int64_t begin, int64_t count, float* to) const {
    const char* x = static_cast<const char*>(args_.x) + begin * element_bytes(args_.x_type);
    kernels_.families.blocks->widen_words(x, args_.x_type, count, reinterpret_cast<uint32_t*>(to));
  }
  void run(const HadamardTile& tile, int runs) {
    const uint32_t all = (1u << runs) - 1;
    for (uint32_t open = work_.side_by_side(tile) & all; open != 0; open &= open - 1)
      transform_exactly(tile, __builtin_ctz(open));
  }

  const HadamardArgs& args_;
  const bool streamed_;
  const Kernels& kernels_;
  const HadamardKernels& work_;
  // Lanes without a run hold old numbers, which nobody reads.
  alignas(64) float x_[kMaxHadamard * kLanes] = {};
  alignas(64) float y_[kMaxHadamard * kLanes];
  alignas(64) float wide_[kPiece];
};

}  // namespace

void hadamard(const HadamardArgs& args) {
  const int64_t per_line = args.length / args.size, lines = args.outer * per_line;
  const bool along = args.inner == 1;
  const int64_t rows = along ? 1 : lines, width = along ? lines : args.inner;
  const int64_t step = along ? kPiece / args.size : kLanes, grain = kGrain / args.size / step;
  const int64_t tiles = (width + step - 1) / step;
  const int64_t count = args.outer * args.length * args.inner;
  const bool aligned = reinterpret_cast<uintptr_t>(args.y) % 64 == 0;
  const bool streamed =
      aligned && count * (element_bytes(args.x_type) + element_bytes(ElementType::kFloat32)) >=
                     args.stream_bytes;
  parallel_ranges(rows * tiles, grain, args.threads, [&](int64_t first, int64_t last) {
    Transform transform(args, streamed);
    for (int64_t i = first; i < last; ++i) {
      const int64_t place = i % tiles * step;
      const int runs = static_cast<int>(std::min(step, width - place));
      if (along) {
        transform.along(place * args.size, runs);
      } else {
        transform.across(i / tiles * args.size * args.inner + place, runs);
      }
    }
  });
}

}  // namespace lpk
