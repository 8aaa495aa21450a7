// Sums in IEEE half precision by the processor's own arithmetic (AVX512-FP16, or FEAT_FP16 of ARM):
// the accumulator is e5m10, so one multiply-add is the contract's step.
//
//   acc <- fma(a, b, acc)     or    acc <- acc + (a * b)  where products are rounded, too
//
// The processor rounds the exact sum once, in the four modes that it has, with subnormals, signed
// zeros, infinities and NaN as the contract has them. saturate: an infinity can only come from
// finite operands here, and is clamped. A and B must hold half-precision values.
#pragma once

#include <vector>

#include "cpu/lanes/half_lanes.h"
#include "cpu/sums/exact/chunks.h"
#include "half_sums.h"

namespace lpk {
namespace {

// acc + a product: exact, by one multiply-add, or rounded to half precision before it is added.
struct FusedHalfProduct {
  LPK_HD Half sum(Half a, Half b, Half acc) const { return half_fma(a, b, acc); }
};

template <bool kSaturates>
struct HalfProduct {
  Half limit = all_halves(65504.0f);
  LPK_HD Half sum(Half a, Half b, Half acc) const {
    Half p = half_product(a, b);
    if (kSaturates) p = half_within(p, limit);
    return half_sum(p, acc);
  }
};

// Where the sums of a tile lie in memory, by rows against pairs of panels. The last pair of a tile
// may have one panel only: `beside` then takes the missing panel's sums. The functions, for ends of
// chunks and blocks, are compiled once for all kernels: the kernels hand over sums in memory.
struct HalfState {
  const Tile& t;
  const ChunkEnd& end;
  int64_t paired;  // lanes of whole pairs
  float* beside;   // kMaxHalfRows x kPanel
  bool outer_is_half;
  bool outer_saturates;
  Half limit = all_halves(65504.0f);

  LPK_HD float* high(float* state, int64_t row, int r, int64_t lane) const {
    return lane < paired ? state + (row + r) * t.stride + lane + kPanel : beside + r * kPanel;
  }
  LPK_HD void load(float* state, int64_t row, int r, int64_t lane, HalfColumn* to) const {
    pack_halves(state + (row + r) * t.stride + lane, high(state, row, r, lane), to);
  }
  LPK_HD void store(float* state, int64_t row, int r, int64_t lane, const HalfColumn* x) const {
    unpack_halves(x, state + (row + r) * t.stride + lane, high(state, row, r, lane));
  }

  // The inner sums of `rows` rows from `row` on and `wide` pairs from `lane` on.
  __attribute__((noinline)) void load_all(int rows, int wide, int64_t row, int64_t lane,
                                          HalfColumn* to) const {
    for (int r = 0; r < rows; ++r) {
      for (int w = 0; w < wide; ++w, ++to) load(t.inner, row, r, lane + w * kHalfLanes, to);
    }
  }
  __attribute__((noinline)) void store_all(int rows, int wide, int64_t row, int64_t lane,
                                           const HalfColumn* from) const {
    for (int r = 0; r < rows; ++r) {
      for (int w = 0; w < wide; ++w, ++from) store(t.inner, row, r, lane + w * kHalfLanes, from);
    }
  }

  // outer <- round(outer + inner) in half precision.
  __attribute__((noinline)) void close_in_half(int rows, int wide, int64_t row, int64_t lane,
                                               const HalfColumn* from) const {
    for (int r = 0; r < rows; ++r) {
      for (int w = 0; w < wide; ++w, ++from) {
        const int64_t first = lane + w * kHalfLanes;
        HalfColumn outer;
        load(t.outer, row, r, first, &outer);
        for (int v = 0; v < kHalfVectors; ++v) {
          Half total =
              half_sum(lpk::load<Half>(vector_of(&outer, v)), lpk::load<Half>(vector_of(from, v)));
          if (outer_saturates) total = half_within(total, limit);
          lpk::store(vector_of(&outer, v), total);
        }
        store(t.outer, row, r, first, &outer);
      }
    }
  }
  // The same in any format, of the inner sums in memory, which then are +0.
  template <int kRows>
  __attribute__((noinline)) void close(int wide, int64_t row, int64_t lane, int64_t chunk) const {
    const ProcessorMode usual(kNearestMode);
    for (int64_t first = lane; first < lane + wide * kHalfLanes; first += kHalfLanes) {
      end.close(t, row, kRows, first, static_cast<uint64_t>(chunk));
      if (first < paired) end.close(t, row, kRows, first + kPanel, static_cast<uint64_t>(chunk));
    }
  }
};

// kRows rows from `row` on against kPairs pairs of panels from `lane` on.
template <class Product, bool kSaturates>
struct HalfRun {
  const Tile& t;
  const Accumulator& acc;
  const Product& product;
  const HalfState& state;
  const uint32_t* a;    // rows x depth, each a value twice
  const HalfColumn* b;  // pairs of panels of depth x 32

  LPK_HD uint32_t marks(int64_t lane, int64_t k) const {
    const uint16_t* low = t.lane_absent + lane / kPanel * t.depth + k;
    return lane < state.paired ? *low | static_cast<uint32_t>(low[t.depth]) << 16 : *low;
  }

  template <int kRows, int kPairs, bool kMasked>
  __attribute__((noinline)) void panels(int64_t row, int64_t lane) const {
    HalfColumn memory[kRows * kPairs];
    constexpr int kVectors = kPairs * kHalfVectors;
    Half sum[kRows][kVectors];
    // Each of the loops over sums is unrolled, so that they stay in registers.
    const auto for_each_sum = [&](const auto& visit) __attribute__((always_inline)) {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          visit(sum[r][v], vector_of(memory + r * kPairs + v / kHalfVectors, v % kHalfVectors));
      }
    };
    state.load_all(kRows, kPairs, row, lane, memory);
    for_each_sum([](Half& x, const uint16_t* from) { x = lpk::load<Half>(from); });
    const uint32_t* left = a + row * t.depth;
    const HalfColumn* right = b + lane / kHalfLanes * t.depth;
    for_each_span(t, acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
      for (int64_t k = from; k < to; ++k) {
        Half column[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          const HalfColumn* from = right + v / kHalfVectors * t.depth + k;
          column[v] = lpk::load<Half>(vector_of(from, v % kHalfVectors));
        }
        for (int r = 0; r < kRows; ++r) {
          if (kMasked && t.row_absent(row + r, k)) continue;
          const Half x = half_of_row(left[r * t.depth + k]);
          for (int v = 0; v < kVectors; ++v) {
            Half next = product.sum(x, column[v], sum[r][v]);
            if (kSaturates) next = half_within(next, state.limit);
            if (kMasked && t.lane_absent != nullptr) {
              const uint32_t absent = marks(lane + v / kHalfVectors * kHalfLanes, k);
              sum[r][v] = half_kept(absent >> v % kHalfVectors * kHalves, sum[r][v], next);
            } else {
              sum[r][v] = next;
            }
          }
        }
      }
      if (closed < 0) return;
      for_each_sum([](Half x, uint16_t* to) { lpk::store(to, x); });
      if (state.outer_is_half) {
        state.close_in_half(kRows, kPairs, row, lane, memory);
      } else {
        state.store_all(kRows, kPairs, row, lane, memory);
        state.template close<kRows>(kPairs, row, lane, closed);
      }
      for_each_sum([](Half& x, const uint16_t*) { x = Half{}; });
    });
    for_each_sum([](Half x, uint16_t* to) { lpk::store(to, x); });
    state.store_all(kRows, kPairs, row, lane, memory);
  }

  template <int kPairs, bool kMasked>
  void rows(int64_t lane) const {
    int64_t row = 0;
    for (; row + kHalfRows <= t.rows; row += kHalfRows)
      panels<kHalfRows, kPairs, kMasked>(row, lane);
    for (; row + 4 <= t.rows; row += 4) panels<4, kPairs, kMasked>(row, lane);
    for (; row < t.rows; ++row) panels<1, kPairs, kMasked>(row, lane);
  }

  template <bool kMasked>
  void all() const {
    int64_t lane = 0;
    constexpr int64_t kWide = kHalfPairs * kHalfLanes;
    for (; lane + kWide <= state.paired; lane += kWide) rows<kHalfPairs, kMasked>(lane);
    for (; lane < t.lanes; lane += kHalfLanes) rows<1, kMasked>(lane);
  }
};

// A as 32-bit words that hold each half twice.
inline const uint32_t* words_of_a(const Tile& t) {
  using RowLanes = Bits32<Isa::kWords>;
  thread_local std::vector<uint32_t> a;
  const int64_t count = t.rows * t.depth;
  a.resize((count + kPanel - 1) / kPanel * kPanel);
  for (int64_t i = 0; i < count; i += Isa::kWords) {
    const RowLanes::F values = first_floats(t.a + i, count - i);
    const auto half = float16_of_words<RowLanes>(as_words<RowLanes>(values));
    const auto bits = halves_as_words<RowLanes>(half);
    store(a.data() + i, bits | bits << 16);
  }
  return a.data();
}

inline const HalfColumn* halves_of_b(const Tile& t) {
  PackedFacts& facts = *t.b_facts;
  if (facts.halved) return facts.halves.data();
  const int64_t pairs = (t.lanes + kHalfLanes - 1) / kHalfLanes;
  facts.halves.resize(pairs * t.depth);
  const float zeros[kPanel] = {};
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const float* low = t.b + pair * kHalfLanes * t.depth;
    const bool whole = (pair + 1) * kHalfLanes <= t.lanes;
    for (int64_t k = 0; k < t.depth; ++k) {
      const float* high = whole ? low + (t.depth + k) * kPanel : zeros;
      pack_halves(low + k * kPanel, high, &facts.halves[pair * t.depth + k]);
    }
  }
  facts.halved = true;
  return facts.halves.data();
}

template <bool kSaturates, class Product>
void run_half(const Tile& t, const Accumulator& acc, bool outer_is_half, const Product& product) {
  float beside[12 * kPanel] = {};
  const ChunkEnd end(acc);
  const HalfState state{t,      end,           t.lanes / kHalfLanes * kHalfLanes,
                        beside, outer_is_half, acc.outer.overflow == Overflow::kSaturate};
  const HalfRun<Product, kSaturates> run{t, acc, product, state, words_of_a(t), halves_of_b(t)};
  const ProcessorMode direction(hardware_mode(acc.rounding));
  if (t.absent != nullptr || t.lane_absent != nullptr) return run.template all<true>();
  run.template all<false>();
}

inline void run_half_sums(const Tile& t, const HalfSums& sums) {
  const Accumulator acc = accumulator_from(t.accumulator);
  const auto run = [&](const auto& product) {
    if (acc.fmt.overflow == Overflow::kSaturate)
      return run_half<true>(t, acc, sums.outer_is_half, product);
    run_half<false>(t, acc, sums.outer_is_half, product);
  };
  if (!sums.rounds_products) return run(FusedHalfProduct{});
  if (sums.saturates) return run(HalfProduct<true>{});
  run(HalfProduct<false>{});
}

}  // namespace
}  // namespace lpk
