// Sums in IEEE half precision by the processor's own arithmetic (AVX512-FP16): the accumulator is
// e5m10, so one multiply-add is the contract's step, 32 lanes at a time.
//
//   acc <- fma(a, b, acc)     or    acc <- acc + (a * b)  where products are rounded, too
//
// The processor rounds the exact sum once, in the four modes that it has, with subnormals, signed
// zeros, infinities and NaN as the contract has them. saturate: an infinity can only come from
// finite operands here, and is clamped. A and B must hold half-precision values.
#pragma once

#include <vector>

#include "cpu/sums/exact/chunks.h"
#include "half_products.h"

namespace lpk {
namespace {

// Floats side by side, exact as halves.
LPK_HD Half halves(__m512 low, __m512 high) {
  const __m256i l = _mm512_cvtps_ph(low, _MM_FROUND_NO_EXC);
  const __m256i h = _mm512_cvtps_ph(high, _MM_FROUND_NO_EXC);
  return _mm512_castsi512_ph(_mm512_inserti64x4(_mm512_castsi256_si512(l), h, 1));
}
// The lanes of two panels as one vector of halves, and back.
LPK_HD Half load_halves(const float* low, const float* high) {
  return halves(_mm512_loadu_ps(low), _mm512_loadu_ps(high));
}
LPK_HD void store_halves(float* low, float* high, Half x) {
  const __m512i bits = _mm512_castph_si512(x);
  _mm512_storeu_ps(low, _mm512_cvtph_ps(_mm512_castsi512_si256(bits)));
  _mm512_storeu_ps(high, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1)));
}

// Where the sums of a tile lie in memory, by rows against pairs of panels. The last pair of a tile
// may have one panel only: `beside` then takes the missing panel's sums. The functions, for ends of
// chunks and blocks, are compiled once for all kernels: the kernels hand over sums in memory.
struct HalfState {
  const Tile& t;
  const ChunkEnd<Vec<8>>& end;
  int64_t paired;  // lanes of whole pairs
  float* beside;   // kMaxHalfRows x kPanel
  bool outer_is_half;
  bool outer_saturates;
  Half limit = all_halves(65504.0f);

  LPK_HD float* high(float* state, int64_t row, int r, int64_t lane) const {
    return lane < paired ? state + (row + r) * t.stride + lane + kPanel : beside + r * kPanel;
  }
  LPK_HD Half load(float* state, int64_t row, int r, int64_t lane) const {
    return load_halves(state + (row + r) * t.stride + lane, high(state, row, r, lane));
  }
  LPK_HD void store(float* state, int64_t row, int r, int64_t lane, Half x) const {
    store_halves(state + (row + r) * t.stride + lane, high(state, row, r, lane), x);
  }

  // The inner sums of `rows` rows from `row` on and `wide` pairs from `lane` on.
  __attribute__((noinline)) void load_all(int rows, int wide, int64_t row, int64_t lane,
                                          HalfColumn* to) const {
    for (int r = 0; r < rows; ++r) {
      for (int w = 0; w < wide; ++w, ++to)
        lpk::store(to, load(t.inner, row, r, lane + w * kHalfLanes));
    }
  }
  __attribute__((noinline)) void store_all(int rows, int wide, int64_t row, int64_t lane,
                                           const HalfColumn* from) const {
    for (int r = 0; r < rows; ++r) {
      for (int w = 0; w < wide; ++w, ++from)
        store(t.inner, row, r, lane + w * kHalfLanes, lpk::load<Half>(from));
    }
  }

  // outer <- round(outer + inner) in half precision.
  __attribute__((noinline)) void close_in_half(int rows, int wide, int64_t row, int64_t lane,
                                               const HalfColumn* from) const {
    for (int r = 0; r < rows; ++r) {
      for (int w = 0; w < wide; ++w, ++from) {
        const int64_t first = lane + w * kHalfLanes;
        Half total =
            _mm512_add_round_ph(load(t.outer, row, r, first), lpk::load<Half>(from), kModeOfSums);
        if (outer_saturates) total = half_within(total, limit);
        store(t.outer, row, r, first, total);
      }
    }
  }
  // The same in any format, of the inner sums in memory, which then are +0.
  template <int kRows>
  __attribute__((noinline)) void close(int wide, int64_t row, int64_t lane, int64_t chunk) const {
    const ProcessorMode usual(kNearestMode);
    for (int64_t first = lane; first < lane + wide * kHalfLanes; first += kHalfLanes) {
      end.template close<kRows>(t, row, first, static_cast<uint64_t>(chunk));
      if (first < paired)
        end.template close<kRows>(t, row, first + kPanel, static_cast<uint64_t>(chunk));
    }
  }
};

// kRows rows from `row` on against kPairs pairs of panels from `lane` on.
template <class Product, bool kSaturates>
struct HalfRun {
  static constexpr int kWords = Product::kWords;
  const Tile& t;
  const Accumulator& acc;
  const Product& product;
  const HalfState& state;
  const uint32_t* a;    // rows x depth x kWords, each a value twice
  const HalfColumn* b;  // pairs of panels of depth x 32
  Half limit = all_halves(65504.0f);

  LPK_HD __mmask32 marks(int64_t lane, int64_t k) const {
    const uint16_t* low = t.lane_absent + lane / kPanel * t.depth + k;
    return lane < state.paired ? *low | static_cast<uint32_t>(low[t.depth]) << 16 : *low;
  }

  template <int kRows, int kPairs, bool kMasked>
  __attribute__((noinline)) void panels(int64_t row, int64_t lane) const {
    HalfColumn memory[kRows * kPairs];
    Half sum[kRows][kPairs];
    // Each of the loops over sums is unrolled, so that they stay in registers.
    const auto each = [&](const auto& visit) __attribute__((always_inline)) {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int w = 0; w < kPairs; ++w) visit(sum[r][w], memory + r * kPairs + w);
      }
    };
    state.load_all(kRows, kPairs, row, lane, memory);
    each([](Half& x, const HalfColumn* from) { x = lpk::load<Half>(from); });
    const uint32_t* left = a + row * t.depth * kWords;
    const HalfColumn* right = b + lane / kHalfLanes * t.depth;
    for_each_span(t, acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
      for (int64_t k = from; k < to; ++k) {
        Half column[kPairs];
        for (int w = 0; w < kPairs; ++w) column[w] = lpk::load<Half>(right + w * t.depth + k);
        for (int r = 0; r < kRows; ++r) {
          if (kMasked && t.absent != nullptr && t.absent[(row + r) * t.depth + k]) continue;
          const uint32_t* x = left + (r * t.depth + k) * kWords;
          for (int w = 0; w < kPairs; ++w) {
            Half next = product.sum(x, column[w], sum[r][w]);
            if (kSaturates) next = half_within(next, limit);
            if (kMasked && t.lane_absent != nullptr) {
              sum[r][w] = _mm512_mask_blend_ph(marks(lane + w * kHalfLanes, k), next, sum[r][w]);
            } else {
              sum[r][w] = next;
            }
          }
        }
      }
      if (closed < 0) return;
      each([](Half x, HalfColumn* to) { lpk::store(to, x); });
      if (state.outer_is_half) {
        state.close_in_half(kRows, kPairs, row, lane, memory);
      } else {
        state.store_all(kRows, kPairs, row, lane, memory);
        state.template close<kRows>(kPairs, row, lane, closed);
      }
      each([](Half& x, const HalfColumn*) { x = _mm512_setzero_ph(); });
    });
    each([](Half x, HalfColumn* to) { lpk::store(to, x); });
    state.store_all(kRows, kPairs, row, lane, memory);
  }

  template <int kPairs, bool kMasked>
  void rows(int64_t lane) const {
    int64_t row = 0;
    for (; row + 12 <= t.rows; row += 12) panels<12, kPairs, kMasked>(row, lane);
    for (; row + 4 <= t.rows; row += 4) panels<4, kPairs, kMasked>(row, lane);
    for (; row < t.rows; ++row) panels<1, kPairs, kMasked>(row, lane);
  }

  template <bool kMasked>
  void all() const {
    int64_t lane = 0;
    for (; lane + 2 * kHalfLanes <= state.paired; lane += 2 * kHalfLanes) rows<2, kMasked>(lane);
    for (; lane < t.lanes; lane += kHalfLanes) rows<1, kMasked>(lane);
  }
};

// A as 32-bit words that hold each half twice.
template <class Product>
const uint32_t* words_of_a(const Tile& t, const Product& product, int scale) {
  constexpr int kWords = Product::kWords;
  thread_local std::vector<uint32_t> a;
  const int64_t count = t.rows * t.depth;
  a.resize((count + kPanel - 1) / kPanel * kPanel * kWords);
  const __m512 by = _mm512_set1_ps(std::ldexp(1.0f, scale));
  uint32_t* to = a.data();
  for (int64_t i = 0; i < count; i += kPanel, to += kPanel * kWords) {
    const int64_t left = std::min<int64_t>(kPanel, count - i);
    __m512 values[kWords];
    product.words_of(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << left) - 1), t.a + i) * by,
                     values);
    __m512i words[kWords];
    for (int w = 0; w < kWords; ++w) {
      const __m512i bits = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(values[w], _MM_FROUND_NO_EXC));
      words[w] = _mm512_or_si512(bits, _mm512_slli_epi32(bits, 16));
    }
    if constexpr (kWords == 1) {
      _mm512_storeu_si512(to, words[0]);
    } else {
      const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
      _mm512_storeu_si512(to, _mm512_permutex2var_epi32(words[0], low, words[1]));
      _mm512_storeu_si512(to + kPanel, _mm512_permutex2var_epi32(words[0], high, words[1]));
    }
  }
  return a.data();
}

inline const HalfColumn* halves_of_b(const Tile& t, int scale) {
  PackedFacts& facts = *t.b_facts;
  if (facts.halved && facts.halves_scale == scale) return facts.halves.data();
  const int64_t pairs = (t.lanes + kHalfLanes - 1) / kHalfLanes;
  facts.halves.resize(pairs * t.depth);
  const __m512 by = _mm512_set1_ps(std::ldexp(1.0f, scale));
  const float zeros[kPanel] = {};
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const float* low = t.b + pair * kHalfLanes * t.depth;
    const bool whole = (pair + 1) * kHalfLanes <= t.lanes;
    for (int64_t k = 0; k < t.depth; ++k) {
      const float* high = whole ? low + (t.depth + k) * kPanel : zeros;
      const __m512 columns[2] = {_mm512_loadu_ps(low + k * kPanel) * by,
                                 _mm512_loadu_ps(high) * by};
      lpk::store(&facts.halves[pair * t.depth + k], halves(columns[0], columns[1]));
    }
  }
  facts.halved = true;
  facts.halves_scale = scale;
  return facts.halves.data();
}

template <bool kSaturates, class Product>
void run_half(const Tile& t, const Accumulator& acc, const HalfSums& sums, bool outer_is_half,
              int mode, const Product& product) {
  float beside[12 * kPanel] = {};
  const ChunkEnd<Vec<8>> end(acc);
  const HalfState state{t,      end,           t.lanes / kHalfLanes * kHalfLanes,
                        beside, outer_is_half, acc.outer.overflow == Overflow::kSaturate};
  const HalfRun<Product, kSaturates> run{
      t, acc, product, state, words_of_a(t, product, sums.left), halves_of_b(t, sums.right)};
  const ProcessorMode direction(mode);
  if (t.absent != nullptr || t.lane_absent != nullptr) return run.template all<true>();
  run.template all<false>();
}

inline void run_half_sums(const Tile& t, const Accumulator& acc, const HalfSums& sums,
                          bool outer_is_half, int mode) {
  const auto run = [&](const auto& product) {
    if (acc.fmt.overflow == Overflow::kSaturate)
      return run_half<true>(t, acc, sums, outer_is_half, mode, product);
    run_half<false>(t, acc, sums, outer_is_half, mode, product);
  };
  const Format& f = acc.product;
  if (sums.products == HalfProducts::kFused) return run(FusedHalfProduct(sums, f));
  if (sums.products == HalfProducts::kHalf) {
    if (sums.saturates) return run(HalfProduct<true>(sums, f));
    return run(HalfProduct<false>(sums, f));
  }
  if (sums.products == HalfProducts::kSplit) {
    if (sums.saturates) return run(SplitHalfProduct<false, true>(sums, f));
    return run(SplitHalfProduct<false, false>(sums, f));
  }
  if (sums.saturates) return run(SplitHalfProduct<true, true>(sums, f));
  run(SplitHalfProduct<true, false>(sums, f));
}

}  // namespace
}  // namespace lpk
