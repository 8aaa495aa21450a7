// nearest_even by Veltkamp's splitting, under a certificate (certificate.h): a multiply-add, a
// multiply, two adds a product.
//
//   s = a b + acc;   g = s (2^(23 - man_bits) + 1);   acc = g + (s - g)
// rounds s to man_bits + 1 bits, ties to even, as long as no subnormal sum occurs; where one
// can, 1.5 2^(23 - man_bits) binades are added and taken away instead, the binade being at least
// that of min_normal.
//
// The certificate holds while sums stay below 2^bound. A is scaled so that this is 2: then bit 30
// of a sum says that it did not, or that it is inf or NaN. A panel with such a sum, or that starts
// from -0 (which the arithmetic above would lose), is restored and left to the caller. Absent taps
// are zeros here: they add nothing to sums that are never -0.
#pragma once

#include <vector>

#include "certificate.h"
#include "chunks.h"

namespace lpk {
namespace {

// W floats with what the kernel needs beyond operators.
template <int W>
struct Floats;

#if defined(__AVX512F__)
template <>
struct Floats<16> {
  using F = __m512;
  using V = Vec<8>;
  static constexpr int kRows = 12;
  LPK_HD static F load(const float* p) { return _mm512_loadu_ps(p); }
  LPK_HD static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  LPK_HD static F all(float x) { return _mm512_set1_ps(x); }
  LPK_HD static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  LPK_HD static F max(F a, F b) { return _mm512_max_ps(a, b); }
  LPK_HD static F masked(F x, int32_t bits) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(bits)));
  }
  LPK_HD static F either(F a, F b) {
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  LPK_HD static bool any(F x, int32_t bits) {
    return _mm512_test_epi32_mask(_mm512_castps_si512(x), _mm512_set1_epi32(bits)) != 0;
  }
};
#elif defined(__AVX2__)
template <>
struct Floats<8> {
  using F = __m256;
  using V = Vec<4>;
  static constexpr int kRows = 5;
  LPK_HD static F load(const float* p) { return _mm256_loadu_ps(p); }
  LPK_HD static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  LPK_HD static F all(float x) { return _mm256_set1_ps(x); }
  LPK_HD static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  LPK_HD static F max(F a, F b) { return _mm256_max_ps(a, b); }
  LPK_HD static F masked(F x, int32_t bits) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(bits)));
  }
  LPK_HD static F either(F a, F b) { return _mm256_or_ps(a, b); }
  LPK_HD static bool any(F x, int32_t bits) {
    return _mm256_testz_si256(_mm256_castps_si256(x), _mm256_set1_epi32(bits)) == 0;
  }
};
#endif

constexpr int32_t kBeyondBound = 0x40000000;
constexpr int32_t kExponentMask = 0x7f800000;

template <class S, bool kFloor>
struct CertifiedRule {
  using F = typename S::F;
  F factor, magic, min_normal;

  CertifiedRule(const Format& f, int shift)
      : factor(S::all(std::ldexp(1.0f, 23 - f.man_bits) + 1.0f)),
        magic(S::all(std::ldexp(1.5f, 23 - f.man_bits))),
        min_normal(S::all(std::ldexp(1.0f, f.emin + shift))) {}

  LPK_HD F operator()(F s) const {
    if constexpr (kFloor) {
      const F binade = S::max(S::masked(s, kExponentMask), min_normal);
      const F wide = S::fma(binade, magic, s);
      return wide - binade * magic;
    } else {
      const F wide = s * factor;
      return wide + (s - wide);
    }
  }
};

// The state of a group of rows and one panel, to go back to.
template <int kRows>
struct Snapshot {
  float inner[kRows][kPanel];
  float outer[kRows][kPanel];
  bool negative_zero = false;

  explicit Snapshot(const Tile& t) {
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(inner[r], t.inner + r * t.stride, sizeof inner[r]);
      std::memcpy(outer[r], t.outer + r * t.stride, sizeof outer[r]);
      for (int l = 0; l < kPanel; ++l) {
        uint32_t bits;
        std::memcpy(&bits, &inner[r][l], sizeof bits);
        negative_zero |= bits == 0x80000000u;
      }
    }
  }
  void restore(const Tile& t) const {
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(t.inner + r * t.stride, inner[r], sizeof inner[r]);
      std::memcpy(t.outer + r * t.stride, outer[r], sizeof outer[r]);
    }
  }
};

// kRows rows of A (scaled by 2^shift) against one panel. Returns whether the certificate held; if
// not, nothing has changed.
template <class S, int kRows, bool kFloor>
bool run_certified_panel(const Tile& t, const Accumulator& acc, const float* a, int shift) {
  using F = typename S::F;
  constexpr int kWidth = sizeof(F) / sizeof(float);
  constexpr int kVectors = kPanel / kWidth;
  const Snapshot<kRows> before(t);
  if (before.negative_zero) return false;

  const CertifiedRule<S, kFloor> rule(acc.fmt, shift);
  const F scale = S::all(std::ldexp(1.0f, shift));
  const F unscale = S::all(std::ldexp(1.0f, -shift));
  const int64_t depth = t.depth;
  F sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = S::load(t.inner + r * t.stride + v * kWidth) * scale;
  }
  // One OR for two sums; four chains of them.
  F seen[4] = {S::all(0.0f), S::all(0.0f), S::all(0.0f), S::all(0.0f)};
  for_each_span(t, acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
    for (int64_t k = from; k < to; ++k) {
      F column[kVectors];
      for (int v = 0; v < kVectors; ++v) column[v] = S::load(t.b + k * kPanel + v * kWidth);
      for (int r = 0; r < kRows; ++r) {
        const F row = S::all(a[r * depth + k]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = rule(S::fma(row, column[v], sum[r][v]));
      }
      const F* flat = &sum[0][0];
      for (int i = 0; i + 1 < kRows * kVectors; i += 2) {
        seen[i / 2 % 4] = S::either(seen[i / 2 % 4], S::either(flat[i], flat[i + 1]));
      }
      if (kRows * kVectors % 2 != 0) seen[0] = S::either(seen[0], flat[kRows * kVectors - 1]);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        S::store(t.inner + r * t.stride + v * kWidth, sum[r][v] * unscale);
    }
    if (closed < 0) return;
    close_chunk<typename S::V, kRows>(t, acc, 0, 0, static_cast<uint64_t>(closed));
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] = S::all(0.0f);
    }
  });
  const F all = S::either(S::either(seen[0], seen[1]), S::either(seen[2], seen[3]));
  if (!S::any(all, kBeyondBound)) return true;
  before.restore(t);
  return false;
}

// The rows and one panel of a tile, as a tile.
inline Tile part_of(const Tile& t, int64_t row, int64_t rows, int64_t lane) {
  Tile part = t;
  part.rows = rows;
  part.lanes = kPanel;
  part.a += row * t.depth;
  if (t.absent != nullptr) part.absent += row * t.depth;
  part.b += lane * t.depth;
  part.inner += row * t.stride + lane;
  part.outer += row * t.stride + lane;
  part.row_id += row;
  part.lane_id += lane;
  return part;
}

// Runs the tile where the certificate holds, and `exact` on every part where it does not. False if
// there is none at all.
template <class S, class Exact>
bool run_certified_tile(const Tile& t, const Accumulator& acc, const Exact& exact) {
  if (acc.rounding != Rounding::kNearestEven) return false;
  const OperandRange a = operand_range(t.a, t.rows * t.depth);
  const OperandRange b = operand_range(t.b, t.lanes * t.depth);
  const Certificate certificate = certify(acc.fmt, a, b);
  if (!certificate.valid || (acc.has_product && !products_stay(acc.product, a, b))) return false;

  const int shift = 1 - certificate.bound;
  const float scale = std::ldexp(1.0f, shift);
  thread_local std::vector<float> scaled;
  scaled.resize(t.rows * t.depth);
  std::transform(t.a, t.a + t.rows * t.depth, scaled.begin(), [=](float x) { return x * scale; });

  const auto attempt = [&](auto rows, const Tile& part, int64_t row) {
    const float* from = scaled.data() + row * t.depth;
    return certificate.floor
               ? run_certified_panel<S, decltype(rows)::value, true>(part, acc, from, shift)
               : run_certified_panel<S, decltype(rows)::value, false>(part, acc, from, shift);
  };
  // Once a panel has gone beyond the bound its neighbours are likely to: they are not tried.
  bool holds = true;
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    int64_t row = 0;
    while (row < t.rows) {
      const bool whole = row + S::kRows <= t.rows;
      const bool two = !whole && row + 2 <= t.rows;
      const Tile part = part_of(t, row, whole ? S::kRows : two ? 2 : 1, lane);
      if (holds) {
        holds = whole ? attempt(std::integral_constant<int, S::kRows>{}, part, row)
                : two ? attempt(std::integral_constant<int, 2>{}, part, row)
                      : attempt(std::integral_constant<int, 1>{}, part, row);
        if (!holds) exact(part);
      } else {
        exact(part);
      }
      row += part.rows;
    }
  }
  return true;
}

}  // namespace
}  // namespace lpk
