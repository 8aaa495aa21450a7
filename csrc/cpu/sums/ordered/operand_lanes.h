// Blocks aligned by their operands under a certificate (operand_certificate.h): two multiply-adds
// a product, toward zero, one of which adds zero.
//
//   E = the largest sum of exponents, in bytes, as many lanes to a vector as it has bytes
//   p = M + max(c, 0),  n = M + max(-c, 0)                 c the running sum, cut to units
//   p += |a| max(+-b, 0),  n += |a| max(-+b, 0)            for every product, by the sign of a
//   c = round(p - n)                                       the exact sum
// Products are cut toward zero of their magnitude, so positive and negative ones are summed apart.
// B is laid out in two halves, max(b, 0) and max(-b, 0), and the sign of a says which half makes
// positive products and which makes negative ones.
#pragma once

#include <limits>
#include <vector>

#include "cpu/drivers/aligned.h"
#include "cpu/lanes/lanes.h"
#include "operand_certificate.h"
#include "operand_sums.h"
#include "operand_vector.h"

namespace lpk {
namespace {

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

// A by rows, in the order of blocks: its magnitudes, how many bytes away the half of B lies that
// makes products positive, and its exponents, each four times.
template <class T>
struct OperandRows {
  std::vector<T, LineAllocator<T>> size;
  std::vector<uint32_t, LineAllocator<uint32_t>> side;
  std::vector<int32_t, LineAllocator<int32_t>> place;

  // Vectors pass the end of a row, the last one of the whole.
  void pack(const Tile& t, const OperandBlocks& blocks, int lowest, int emin) {
    const auto steps = static_cast<int64_t>(blocks.order.size());
    size.resize(t.rows * steps + kFloats);
    side.resize(t.rows * steps + kFloats);
    place.resize(t.rows * steps + kFloats);
    line_.resize(steps + kFloats);
    for (int64_t row = 0; row < t.rows; ++row) {
      const float* x = t.a + row * t.depth;
      for (int64_t s = 0; s < steps; ++s) line_[s] = x[blocks.order[s]];
      for (int64_t s = 0; s < steps; s += kFloats)
        pack_steps(line_.data() + s, row * steps + s, lowest, emin);
    }
  }

 private:
  using Floats = OperandVector<float>;
  using I = Floats::I;
  static constexpr int64_t kFloats = kVectorBytes / 4;

  LPK_HD void pack_steps(const float* x, int64_t at, int lowest, int emin) {
    using O = OperandVector<T>;
    constexpr int64_t kWidth = kVectorBytes / static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < kFloats; i += kWidth) {
      const typename O::F value = O::load_sums(x + i);
      store(size.data() + at + i, O::max(value, -value));
    }
    const I bits = load<I>(x);
    I e = bits >> 23 & 255;
    e = (e > emin + 127 ? e : I{} + (emin + 127)) - (lowest + 127);
    e = (bits << 1) == 0 ? I{} + kAbsent : e;
    e &= 255;
    e |= e << 8;
    store(place.data() + at, e | e << 16);
    store(side.data() + at, (bits >> 31) & kHalfBytes<T>);
  }

  std::vector<float> line_;
};

// The part of a tile that these kernels take at once: some lanes, every row.
template <class T>
struct OperandGroup {
  const Tile& t;
  const Accumulator& acc;
  const OperandBlocks& blocks;
  const OperandCertificate& proof;
  const OperandRows<T>& rows;
  int b_emin;  // of the format of B's side
};

// Both halves of some lanes of B, and exponents, in the order of blocks.
template <class T, int kLanes>
struct OperandColumns {
  static constexpr int64_t kHalf = kHalfBytes<T> / static_cast<int64_t>(sizeof(T));
  std::vector<T, LineAllocator<T>> halves;
  std::vector<int8_t, LineAllocator<int8_t>> places;

  void pack(const Tile& t, const OperandBlocks& blocks, int64_t lane, int lowest, int emin) {
    using O = OperandVector<T>;
    using F = typename O::F;
    constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
    const auto steps = static_cast<int64_t>(blocks.order.size());
    halves.resize(steps * 2 * kHalf);
    places.resize(steps * kLanes);
    for (int64_t panel = 0; panel < kLanes / kPanel; ++panel) {
      const float* from = t.b + (lane + panel * kPanel) * t.depth;
      for (int64_t s = 0; s < steps; ++s) {
        const float* x = from + blocks.order[s] * kPanel;
        T* to = halves.data() + s * 2 * kHalf + panel * kPanel;
        for (int l = 0; l < kPanel; l += kWidth) {
          const F value = O::load_sums(x + l);
          store(to + l, O::max(value, F{}));
          store(to + kHalf + l, O::max(-value, F{}));
        }
        store_bytes(places.data() + s * kLanes + panel * kPanel, x, lowest, emin);
      }
    }
  }

 private:
  // The exponents of a panel.
  LPK_HD static void store_bytes(int8_t* to, const float* x, int lowest, int emin) {
    PanelQuarter words[4];
    for (int i = 0; i < 4; ++i) {
      const PanelQuarter bits = load<PanelQuarter>(x + 4 * i);
      const PanelQuarter biased = bits >> 23 & 255;
      const PanelQuarter counted =
          (biased > emin + 127 ? biased : PanelQuarter{} + (emin + 127)) - (lowest + 127);
      words[i] = bits << 1 == 0 ? PanelQuarter{} + kAbsent : counted;
    }
    store_bytes_of(words, to);
  }
};

// kVectors vectors of lanes at once. kPlain: the sums are cut by their leading bit alone (the
// certificate's `plain`).
template <class T, int kVectors, bool kPlain>
struct OperandKernel {
  using O = OperandVector<T>;
  using F = typename O::F;
  using I = typename O::I;
  using Word = typename O::Word;
  static constexpr Word kSign = std::numeric_limits<Word>::min();
  static constexpr Word kExponents = Word{2 * O::kBias + 1} << O::kMantissa;
  static constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kLanes = kVectors * kWidth;
  // Rows whose exponents are compared at once.
  static constexpr int kRows = 4;
  using Bytes = ByteVector<kLanes>;
  using Columns = OperandColumns<T, kLanes>;

  const OperandGroup<T>& group;
  const Columns& columns;
  BlockRounding<T> rounding;
  Word first, least, magic;  // of exponents: added to bytes, the least, to M; bits
  Word sum_min_normal, keep;
  int64_t steps_of_row;

  OperandKernel(const OperandGroup<T>& of, const Columns& b)
      : group(of),
        columns(b),
        rounding(of.acc),
        first(of.proof.a_lowest + of.proof.b_lowest + O::kBias),
        least(Word{of.proof.least + O::kBias} << O::kMantissa),
        magic(Word{O::kMantissa - of.acc.aligned_bits} << O::kMantissa),
        sum_min_normal(rounding.min_normal),
        keep(-(Word{1} << (O::kMantissa - of.acc.fmt.man_bits))),
        steps_of_row(static_cast<int64_t>(of.blocks.order.size())) {}

  // The largest bytes of some rows of a block.
  template <int kCount>
  LPK_HD void find_places(const OperandBlock& block, int64_t row, int8_t* to) const {
    using B = typename Bytes::B;
    const int32_t* place = group.rows.place.data() + row * steps_of_row;
    const int8_t* places = columns.places.data();
    B most[kCount];
    for (B& m : most) m = B{} + std::numeric_limits<int8_t>::min();
    for (int64_t s = block.first; s < block.end; ++s) {
      const B column = load<B>(places + s * kLanes);
      for (int r = 0; r < kCount; ++r)
        most[r] = Bytes::max(most[r], Bytes::all(place[r * steps_of_row + s]) + column);
    }
    for (int r = 0; r < kCount; ++r) store(to + r * kLanes, most[r]);
  }

  // 2^E in bits: of the bytes' largest, and the running sum.
  LPK_HD I top_of(const int8_t* most, F c) const {
    const I e = O::bytes(most);
    const I of_products = ((e + first) << O::kMantissa) & (e >= 0);
    I of_sum = (I)c & kExponents;
    // Plain: no sum is below the format's smallest normal number but for those that `least` holds.
    if (!kPlain) of_sum = (of_sum > sum_min_normal ? of_sum : I{} + sum_min_normal) & (c != 0);
    const I top = of_products > of_sum ? of_products : of_sum;
    return top > least ? top : I{} + least;
  }

  // One row of a block, whose places are found. Returns the largest magnitudes.
  LPK_HD F add_block(const OperandBlock& block, int64_t row, const int8_t* places, int64_t lane,
                     F worst) const {
    float* sums = group.t.inner + row * group.t.stride + lane;
    F p[kVectors], n[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const F c = O::load_sums(sums + v * kWidth);
      const F m = (F)(top_of(places + v * kWidth, c) + magic);
      p[v] = m + O::max(c, F{});
      n[v] = m + O::max(-c, F{});
    }
    const T* size = group.rows.size.data() + row * steps_of_row;
    const uint32_t* side = group.rows.side.data() + row * steps_of_row;
    const char* halves = reinterpret_cast<const char*>(columns.halves.data());
    halves += block.first * 2 * kHalfBytes<T>;
    for (int64_t s = block.first; s < block.end; ++s, halves += 2 * kHalfBytes<T>) {
      const F a = O::all(size[s]);
      const char* positive = halves + side[s];
      const char* negative = halves + (kHalfBytes<T> - side[s]);
      for (int v = 0; v < kVectors; ++v) {
        p[v] = O::fma(a, load<F>(positive + v * sizeof(F)), p[v]);
        n[v] = O::fma(a, load<F>(negative + v * sizeof(F)), n[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const F s = p[v] - n[v];
      if constexpr (kPlain) {
        const F size_of_s = (F)((I)s & (keep & ~kSign));
        worst = O::max(size_of_s, worst);
        O::store_sums(sums + v * kWidth, (F)((I)s & keep));
      } else {
        const F r = rounding.magnitude((F)((I)s & ~kSign));
        worst = O::max(r, worst);
        O::store_sums(sums + v * kWidth, (F)(((I)r | ((I)s & kSign)) & (r != 0)));
      }
    }
    return worst;
  }

  // Adds every row of a block, while the processor rounds toward zero. Returns false if the largest
  // magnitude of the sums after it is above the limit.
  __attribute__((noinline)) bool add_rows(const OperandBlock& block, int64_t lane) const {
    const ProcessorRounding<kZero> toward_zero;
    const int64_t rows = group.t.rows;
    alignas(64) int8_t places[kRows * kLanes];
    F worst{};
    for (int64_t row = 0; row < rows; row += kRows) {
      const int64_t count = std::min<int64_t>(kRows, rows - row);
      if (count == kRows) {
        find_places<kRows>(block, row, places);
      } else {
        for (int64_t r = 0; r < count; ++r) find_places<1>(block, row + r, places + r * kLanes);
      }
      for (int64_t r = 0; r < count; ++r)
        worst = add_block(block, row + r, places + r * kLanes, lane, worst);
    }
    T most[kWidth];
    store(most, worst);
    return *std::max_element(most, most + kWidth) <= static_cast<T>(group.proof.limit);
  }

  // Returns false if a sum was too large; the state is then of no use.
  template <class End>
  bool run(const End& end, int64_t lane) const {
    for (const OperandBlock& block : group.blocks.all) {
      if (block.end > block.first && !add_rows(block, lane)) return false;
      if (block.closes < 0) continue;
      for (int64_t row = 0; row < group.t.rows; ++row) {
        for (int64_t l = lane; l < lane + kLanes; l += kPanel)
          end.close(group.t, row, 1, l, static_cast<uint64_t>(block.closes));
      }
    }
    return true;
  }
};

// A copy of some lanes of the state, to go back to.
class SavedLanes {
 public:
  SavedLanes(const Tile& t, int64_t lane, int64_t lanes) : t_(t), lane_(lane), lanes_(lanes) {
    saved_.resize(2 * t.rows * lanes);
    copy<true>();
  }
  void restore() const { copy<false>(); }

 private:
  template <bool kSave>
  void copy() const {
    float* saved = saved_.data();
    for (int64_t row = 0; row < t_.rows; ++row) {
      for (float* sums : {t_.inner, t_.outer}) {
        float* state = sums + row * t_.stride + lane_;
        std::memcpy(kSave ? saved : state, kSave ? state : saved, lanes_ * sizeof(float));
        saved += lanes_;
      }
    }
  }

  const Tile& t_;
  int64_t lane_, lanes_;
  inline static thread_local std::vector<float> saved_;
};

}  // namespace
}  // namespace lpk
