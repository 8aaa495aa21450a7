// Blocks aligned by their operands under a certificate (operand_certificate.h): two multiply-adds
// a product, toward zero, one of which adds zero.
//
//   E = the largest sum of exponents, in bytes, as many lanes to a vector as it has bytes
//   p = M + max(c, 0),  n = M + max(-c, 0)                 c the running sum, cut to units
//   p += |a| max(+-b, 0),  n += |a| max(-+b, 0)            for every product, by the sign of a
//   c = round(p - n)                                       the exact sum
// Products are cut toward zero of their magnitude, so positive and negative ones are summed apart.
// Of B both halves are laid out, max(b, 0) and max(-b, 0), and the sign of a says which goes where.
#pragma once

#include <limits>
#include <vector>

#include "aligned.h"
#include "hardware_modes.h"
#include "operand_certificate.h"
#include "operand_sums.h"

namespace lpk {
namespace {

// Vectors of the processor: kBytes / sizeof(T) lanes.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#else
constexpr int kVectorBytes = 32;
#endif
// The most vectors of lanes taken at once: as many pairs of sums hide the latency of one.
constexpr int kMostVectors = 4;
// From one half of B's lanes to the other, in bytes.
constexpr int kHalfBytes = kMostVectors * kVectorBytes;

template <class T>
struct OperandVector;
template <>
struct OperandVector<float> {
  typedef float F __attribute__((vector_size(kVectorBytes)));
  typedef int32_t I __attribute__((vector_size(kVectorBytes)));
  typedef int8_t Narrow __attribute__((vector_size(kVectorBytes / 4)));
  using Word = int32_t;
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr Precision kPrecision = kSinglePrecision;
  LPK_HD static F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
  }
  LPK_HD static F load_sums(const float* p) { return load<F>(p); }
  LPK_HD static void store_sums(float* p, F x) { store(p, x); }
};
template <>
struct OperandVector<double> {
  typedef double F __attribute__((vector_size(kVectorBytes)));
  typedef int64_t I __attribute__((vector_size(kVectorBytes)));
  typedef int8_t Narrow __attribute__((vector_size(kVectorBytes / 8)));
  typedef float Floats __attribute__((vector_size(kVectorBytes / 2)));
  using Word = int64_t;
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr Precision kPrecision = kDoublePrecision;
  LPK_HD static F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    return (F)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#else
    return (F)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#endif
  }
  LPK_HD static F load_sums(const float* p) { return __builtin_convertvector(load<Floats>(p), F); }
  LPK_HD static void store_sums(float* p, F x) { store(p, __builtin_convertvector(x, Floats)); }
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

// Running sums of float formats, rounded in the direction of the processor, which is zero.
template <class T>
struct BlockRounding {
  using O = OperandVector<T>;
  using F = typename O::F;
  using I = typename O::I;
  using Word = typename O::Word;
  Word places;      // from a binade to the number that has its last place where the format has its
  Word min_normal;  // bits
  Word half;        // from a binade to half that place
  bool nearest;

  explicit BlockRounding(const Accumulator& acc)
      : places(Word{O::kMantissa - acc.fmt.man_bits} << O::kMantissa),
        min_normal(Word{acc.fmt.emin + O::kBias} << O::kMantissa),
        half(Word{acc.fmt.man_bits + 1} << O::kMantissa),
        nearest(acc.rounding == Rounding::kNearestEven) {}

  // The magnitude of x, rounded.
  LPK_HD F magnitude(F size) const {
    I binade = (I)size & (Word{2 * O::kBias + 1} << O::kMantissa);
    binade = binade > min_normal ? binade : I{} + min_normal;
    const F magic = (F)(binade + places);
    const F sum = size + magic;
    F r = sum - magic;
    if (nearest) {
      const F part = (F)(binade - half);
      const F rest = size - r;
      const I up = (rest > part) | ((rest == part) & (((I)sum & 1) != 0));
      r += (F)((I)(part + part) & up);
    }
    return r;
  }
};

// The part of a tile that these kernels take at once: some lanes, every row.
template <class T>
struct OperandGroup {
  const Tile& t;
  const Accumulator& acc;
  const OperandBlocks& blocks;
  const OperandCertificate& proof;
  // Of A by rows, in the order of blocks: magnitudes, the bytes to the half of B that makes
  // products positive, exponents four times.
  const T* size;
  const int32_t* side;
  const int32_t* place;
  int b_emin;  // of the format of B's side
};

// Both halves of some lanes of B, and exponents, in the order of blocks.
template <class T, int kLanes>
struct OperandColumns {
  static constexpr int64_t kHalf = kHalfBytes / static_cast<int64_t>(sizeof(T));
  std::vector<T, LineAllocator<T>> halves;
  std::vector<int8_t, LineAllocator<int8_t>> places;

  void pack(const Tile& t, const OperandBlocks& blocks, int64_t lane, int lowest, int emin) {
    const auto steps = static_cast<int64_t>(blocks.order.size());
    halves.resize(steps * 2 * kHalf);
    places.resize(steps * kLanes);
    for (int64_t panel = 0; panel < kLanes / kPanel; ++panel) {
      const float* from = t.b + (lane + panel * kPanel) * t.depth;
      for (int64_t s = 0; s < steps; ++s) {
        const float* x = from + blocks.order[s] * kPanel;
        T* to = halves.data() + s * 2 * kHalf + panel * kPanel;
        int8_t* place = places.data() + s * kLanes + panel * kPanel;
        for (int l = 0; l < kPanel; ++l) {
          to[l] = x[l] > 0 ? x[l] : 0.0f;
          to[kHalf + l] = x[l] < 0 ? -x[l] : 0.0f;
          place[l] = static_cast<int8_t>(counted_exponent(x[l], lowest, emin));
        }
      }
    }
  }
  LPK_HD static int32_t counted_exponent(float x, int lowest, int emin) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const int32_t exponent = (bits >> 23 & 255) - 127;
    const int32_t counted = (exponent > emin ? exponent : emin) - lowest;
    return (bits & 0x7fffffff) == 0 ? kAbsent : counted;
  }
};

// kVectors vectors of lanes at once.
template <class T, int kVectors>
struct OperandKernel {
  using O = OperandVector<T>;
  using F = typename O::F;
  using I = typename O::I;
  using Word = typename O::Word;
  static constexpr Word kSign = std::numeric_limits<Word>::min();
  static constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kLanes = kVectors * kWidth;
  using Bytes = ByteVector<kLanes>;
  using Columns = OperandColumns<T, kLanes>;

  const OperandGroup<T>& group;
  const Columns& columns;
  BlockRounding<T> rounding;
  Word first, least, magic;  // of exponents: added to bytes, the least, to M; bits
  Word sum_min_normal;

  OperandKernel(const OperandGroup<T>& of, const Columns& b)
      : group(of),
        columns(b),
        rounding(of.acc),
        first(of.proof.a_lowest + of.proof.b_lowest + O::kBias),
        least(Word{of.proof.least + O::kBias} << O::kMantissa),
        magic(Word{O::kMantissa - of.acc.aligned_bits} << O::kMantissa),
        sum_min_normal(rounding.min_normal) {}

  // 2^E in bits: of the bytes' largest, and the running sum.
  LPK_HD I top_of(const int8_t* most, F c) const {
    const I e = __builtin_convertvector(load<typename O::Narrow>(most), I);
    const I of_products = ((e + first) << O::kMantissa) & (e >= 0);
    I of_sum = (I)c & (Word{2 * O::kBias + 1} << O::kMantissa);
    of_sum = (of_sum > sum_min_normal ? of_sum : I{} + sum_min_normal) & (c != 0);
    I top = of_products > of_sum ? of_products : of_sum;
    return top > least ? top : I{} + least;
  }

  // One row of a block, of which `steps` steps from `step` on. Returns the largest magnitudes.
  LPK_HD F add_block(int64_t row, int64_t step, int64_t steps, int64_t lane, F worst) const {
    const int64_t at = row * static_cast<int64_t>(group.blocks.order.size()) + step;
    const int32_t* place = group.place + at;
    const int8_t* places = columns.places.data() + step * kLanes;
    typename Bytes::B most = typename Bytes::B{} + std::numeric_limits<int8_t>::min();
    for (int64_t s = 0; s < steps; ++s)
      most = Bytes::max(most, Bytes::all(place[s]) + load<typename Bytes::B>(places + s * kLanes));
    alignas(64) int8_t bytes[kLanes];
    store(bytes, most);

    float* sums = group.t.inner + row * group.t.stride + lane;
    F p[kVectors], n[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const F c = O::load_sums(sums + v * kWidth);
      const F m = (F)(top_of(bytes + v * kWidth, c) + magic);
      p[v] = m + (F)((I)c & (c > 0));
      n[v] = m + (F)((I)-c & (c < 0));
    }
    const T* size = group.size + at;
    const int32_t* side = group.side + at;
    const char* halves =
        reinterpret_cast<const char*>(columns.halves.data() + step * 2 * Columns::kHalf);
    for (int64_t s = 0; s < steps; ++s, halves += 2 * kHalfBytes) {
      const F a = F{} + size[s];
      const char* positive = halves + side[s];
      const char* negative = halves + (kHalfBytes - side[s]);
      for (int v = 0; v < kVectors; ++v) {
        p[v] = O::fma(a, load<F>(positive + v * sizeof(F)), p[v]);
        n[v] = O::fma(a, load<F>(negative + v * sizeof(F)), n[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const F s = p[v] - n[v];
      const F size_of_s = (F)((I)s & ~kSign);
      const F r = rounding.magnitude(size_of_s);
      worst = r > worst ? r : worst;
      O::store_sums(sums + v * kWidth, (F)(((I)r | ((I)s & kSign)) & (r != 0)));
    }
    return worst;
  }

  // Every row of a block, while the processor rounds toward zero. The largest magnitude of the sums
  // behind it is above the limit: false.
  __attribute__((noinline)) bool add_rows(const OperandBlock& block, int64_t lane) const {
    const ProcessorRounding<kZero> toward_zero;
    F worst{};
    for (int64_t row = 0; row < group.t.rows; ++row)
      worst = add_block(row, block.first, block.end - block.first, lane, worst);
    T most[kWidth];
    store(most, worst);
    return *std::max_element(most, most + kWidth) <= static_cast<T>(group.proof.limit);
  }

  // False: a sum was too large, and the state is of no use.
  template <class End>
  bool run(const End& end, int64_t lane) const {
    for (const OperandBlock& block : group.blocks.all) {
      if (block.end > block.first && !add_rows(block, lane)) return false;
      if (block.closes < 0) continue;
      for (int64_t row = 0; row < group.t.rows; ++row) {
        for (int64_t l = lane; l < lane + kLanes; l += kPanel)
          end.template close<1>(group.t, row, l, static_cast<uint64_t>(block.closes));
      }
    }
    return true;
  }
};

// What some lanes of the state were, to go back to.
class SavedLanes {
 public:
  SavedLanes(const Tile& t, int64_t lane, int64_t lanes) : t_(t), lane_(lane), lanes_(lanes) {
    thread_local std::vector<float> buffer;
    saved_ = &buffer;
    buffer.resize(2 * t.rows * lanes);
    each([](float* state, float* saved, int64_t bytes) { std::memcpy(saved, state, bytes); });
  }
  void restore() const {
    each([](float* state, float* saved, int64_t bytes) { std::memcpy(state, saved, bytes); });
  }

 private:
  template <class Copy>
  void each(const Copy& copy) const {
    float* saved = saved_->data();
    for (int64_t row = 0; row < t_.rows; ++row) {
      for (float* state : {t_.inner, t_.outer}) {
        copy(state + row * t_.stride + lane_, saved, lanes_ * sizeof(float));
        saved += lanes_;
      }
    }
  }
  const Tile& t_;
  int64_t lane_, lanes_;
  std::vector<float>* saved_;
};

// Rows of A in the order of blocks.
template <class T>
struct OperandRows {
  std::vector<T, LineAllocator<T>> size;
  std::vector<int32_t, LineAllocator<int32_t>> side, place;

  void pack(const Tile& t, const OperandBlocks& blocks, int lowest, int emin) {
    const auto steps = static_cast<int64_t>(blocks.order.size());
    size.resize(t.rows * steps);
    side.resize(t.rows * steps);
    place.resize(t.rows * steps);
    for (int64_t row = 0; row < t.rows; ++row) {
      const float* x = t.a + row * t.depth;
      std::vector<float>& line = ordered_;
      line.resize(steps);
      for (int64_t s = 0; s < steps; ++s) line[s] = x[blocks.order[s]];
      T* sizes = size.data() + row * steps;
      int32_t* sides = side.data() + row * steps;
      int32_t* places = place.data() + row * steps;
      for (int64_t s = 0; s < steps; ++s) {
        sizes[s] = std::fabs(line[s]);
        sides[s] = std::signbit(line[s]) ? kHalfBytes : 0;
        const int32_t e = OperandColumns<T, kPanel>::counted_exponent(line[s], lowest, emin);
        places[s] = static_cast<int32_t>(0x01010101u * static_cast<uint32_t>(e & 255));
      }
    }
  }

 private:
  std::vector<float> ordered_;
};

}  // namespace
}  // namespace lpk
