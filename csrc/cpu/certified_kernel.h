// Sums under a certificate (certificate.h): two to four operations a product.
//
//   nearest_even   s = a b + acc;  g = s (2^(23 - m) + 1);  acc = g + (s - g)     Veltkamp's
//   splitting
//                  where subnormal sums can occur: 1.5 2^(23 - m) binades added and taken away, the
//                  binade at least that of min_normal
//   toward_zero    acc = a b + acc truncated, and its bits masked
//   stochastic     the same with 2 draw + 1 added to the bits below the last place
// m is man_bits. Where float32 sums may not be rounded twice, nearest_even makes them odd first:
// two directed multiply-adds and a choice in place of one multiply-add. Rounded products take the
// place of a b; their own rounding is that of float_rules.h, or none where it would change nothing.
//
// The certificate holds while sums stay below 2^bound. A is scaled so that this is 2: then bit 30
// of a sum says that it did not, or that it is inf or NaN. A panel with such a sum, or that starts
// from -0 (which the splitting would lose), is restored and left to the caller. Absent taps are
// zeros here: they add nothing to sums that are never -0.
#pragma once

#include <vector>

#include "fixed_rules.h"

namespace lpk {
namespace {

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

// What a panel needs beside its tile: constants made once a tile, and A scaled by 2^shift.
template <class S, class Rule, class Product>
struct CertifiedRun {
  const Accumulator& acc;
  const float* a;
  int shift;
  Rule rule;
  Product product;
  ChunkEnd<typename S::V> end;

  CertifiedRun(const Accumulator& accumulator, const float* scaled, int by, const Rule& sum_rule)
      : acc(accumulator),
        a(scaled),
        shift(by),
        rule(sum_rule),
        product(acc.product, by),
        end(acc) {}

  // kRows rows, from row `row` of A on, against the one panel of `t`. Returns whether the
  // certificate held; if not, nothing has changed.
  template <int kRows, bool kMasked>
  bool panel(const Tile& t, int64_t row) const {
    using F = typename S::F;
    constexpr int kWidth = sizeof(F) / sizeof(float);
    constexpr int kVectors = kPanel / kWidth;
    const Snapshot<kRows> before(t);
    if (before.negative_zero && !Rule::kKeepsZeros) return false;

    const F scale = S::all(std::ldexp(1.0f, shift));
    const F unscale = S::all(std::ldexp(1.0f, -shift));
    const float* rows = a + row * t.depth;
    F sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = rule.enter(S::load(t.inner + r * t.stride + v * kWidth) * scale);
      }
    }
    [[maybe_unused]] typename Rule::template PanelState<kRows> draws;
    typename Rule::LaneState lanes;
    if constexpr (Rule::kStochastic) {
      draws.start(t, kSiteSum, acc.random_bits, acc.rng, 0, 0);
      lanes = typename Rule::LaneState(draws.layout, 22 - acc.fmt.man_bits - acc.random_bits);
    }
    // One OR for two sums; four chains of them.
    F seen[4] = {S::all(0.0f), S::all(0.0f), S::all(0.0f), S::all(0.0f)};
    for_each_span(t, acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
      for (int64_t k = from; k < to; ++k) {
        if constexpr (Rule::kStochastic) {
          const uint64_t position = static_cast<uint64_t>(t.position_of(k));
          draws.seek(position);
          lanes.from(draws.layout.shift_of(position));
        }
        F column[kVectors];
        for (int v = 0; v < kVectors; ++v) column[v] = S::load(t.b + k * kPanel + v * kWidth);
        for (int r = 0; r < kRows; ++r) {
          if (kMasked && t.absent[r * t.depth + k]) continue;
          if constexpr (Rule::kStochastic) lanes.words = S::load_words(draws.row_words(r));
          const F left = S::all(rows[r * t.depth + k]);
          for (int v = 0; v < kVectors; ++v) {
            F s;
            if constexpr (std::is_same_v<Product, ExactProduct>) {
              s = rule.fma(left, column[v], sum[r][v]);
            } else {
              s = rule.add(product(left, column[v]), sum[r][v]);
            }
            sum[r][v] = rule.round(s, lanes);
          }
        }
        if constexpr (Rule::kTracked) {
          const F* flat = &sum[0][0];
          for (int i = 0; i + 1 < kRows * kVectors; i += 2) {
            seen[i / 2 % 4] = S::either(seen[i / 2 % 4], S::either(flat[i], flat[i + 1]));
          }
          if (kRows * kVectors % 2 != 0) seen[0] = S::either(seen[0], flat[kRows * kVectors - 1]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          S::store(t.inner + r * t.stride + v * kWidth, rule.leave(sum[r][v]) * unscale);
        }
      }
      if (closed < 0) return;
      end.template close<kRows>(t, 0, 0, static_cast<uint64_t>(closed));
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sum[r][v] = rule.enter(S::all(0.0f));
      }
    });
    if constexpr (!Rule::kTracked) return true;
    const F all = S::either(S::either(seen[0], seen[1]), S::either(seen[2], seen[3]));
    if (!S::any(all, kBeyondBound)) return true;
    before.restore(t);
    return false;
  }
};

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

// All panels of a tile: those of which the certificate does not hold go to `exact`, and once one
// did the rest of its panel of lanes and all later ones with it, as they are likely to as well.
template <bool kMasked, class Run, class Exact>
void run_certified_panels(const Tile& t, const Run& run, const Exact& exact) {
  constexpr int kRows = decltype(run.rule)::kRows;
  bool holds = true;
  for (int64_t lane = 0; lane < t.lanes; lane += kPanel) {
    int64_t row = 0;
    while (row < t.rows && holds) {
      const int64_t left = t.rows - row;
      const int64_t rows = left >= kRows ? kRows : left >= 4 ? 4 : 1;
      const Tile part = part_of(t, row, rows, lane);
      holds = rows == kRows ? run.template panel<kRows, kMasked>(part, row)
              : rows == 4   ? run.template panel<4, kMasked>(part, row)
                            : run.template panel<1, kMasked>(part, row);
      if (holds) row += rows;
    }
    if (row < t.rows) exact(part_of(t, row, t.rows - row, lane));
  }
}

template <class S, class Product, class Rule, class Exact>
bool run_certified(const Tile& t, const Accumulator& acc, const float* a, int shift,
                   const Rule& rule, const Exact& exact) {
  const CertifiedRun<S, Rule, Product> run(acc, a, shift, rule);
  if (Rule::kKeepsZeros && t.absent != nullptr) {
    run_certified_panels<true>(t, run, exact);
  } else {
    run_certified_panels<false>(t, run, exact);
  }
  return true;
}

template <class S, class Sum, class Product, class Exact>
bool run_certified_nearest(const Tile& t, const Accumulator& acc, bool floor, const float* a,
                           int shift, const Exact& exact) {
  if (floor)
    return run_certified<S, Product>(t, acc, a, shift, FloorRule<S, Sum>(acc.fmt, shift), exact);
  return run_certified<S, Product>(t, acc, a, shift, SplitRule<S, Sum>(acc.fmt), exact);
}

// Chooses the rule; false if there is none for the accumulator.
template <class S, class Product, class Exact>
bool run_certified_rule(const Tile& t, const Accumulator& acc, const Certificate& c, const float* a,
                        int shift, const Exact& exact) {
  if (acc.rounding == Rounding::kNearestEven && !c.odd) {
    return run_certified_nearest<S, NearestSum<S>, Product>(t, acc, c.floor, a, shift, exact);
  }
#if defined(__AVX512F__)
  switch (acc.rounding) {
    case Rounding::kNearestEven:
      return run_certified_nearest<S, OddSum<S>, Product>(t, acc, c.floor, a, shift, exact);
    case Rounding::kTowardZero:
      return run_certified<S, Product>(t, acc, a, shift, TruncationRule<S>(acc.fmt), exact);
    case Rounding::kStochastic:
      return run_certified<S, Product>(t, acc, a, shift, StochasticRule<S>(acc.fmt), exact);
    default:
      return false;
  }
#else
  return false;
#endif
}

// The running sums that a tile goes on from.
inline OperandRange state_range(const Tile& t) {
  OperandRange all{true, true, 1, 0, 0};
  for (int64_t r = 0; r < t.rows; ++r) {
    const OperandRange row = operand_range(t.inner + r * t.stride, t.lanes);
    if (row.zero) continue;
    all = {all.plain && row.plain, false, std::max(all.width, row.width),
           all.zero ? row.lowest : std::min(all.lowest, row.lowest),
           all.zero ? row.highest : std::max(all.highest, row.highest)};
  }
  return all;
}

inline const float* scaled_by(const float* x, int64_t count, int shift) {
  thread_local std::vector<float> scaled;
  scaled.resize(count);
  const float scale = std::ldexp(1.0f, shift);
  std::transform(x, x + count, scaled.begin(), [=](float v) { return v * scale; });
  return scaled.data();
}

template <class S, bool kWraps, class Exact>
bool run_grid_rule(const Tile& t, const Accumulator& acc, const GridCertificate& c, const float* a,
                   const Exact& exact) {
  const auto run = [&](auto rule) {
    return run_certified<S, ExactProduct>(t, acc, a, c.shift, rule, exact);
  };
  using Mode = Rounding;
  if (c.on_grid || acc.rounding == Mode::kNearestEven)
    return run(GridRule<S, Mode::kNearestEven, kWraps>(acc.fmt, c.on_grid));
#if defined(__AVX512F__)
  switch (acc.rounding) {
    case Mode::kTowardZero:
      return run(GridRule<S, Mode::kTowardZero, kWraps>(acc.fmt, false));
    case Mode::kTowardPositive:
      return run(GridRule<S, Mode::kTowardPositive, kWraps>(acc.fmt, false));
    case Mode::kTowardNegative:
      return run(GridRule<S, Mode::kTowardNegative, kWraps>(acc.fmt, false));
    case Mode::kToOdd:
      return run(GridRule<S, Mode::kToOdd, kWraps>(acc.fmt, false));
    default:
      return false;
  }
#else
  return false;
#endif
}

// Fixed-point sums of exact products.
template <class S, class Exact>
bool run_grid_tile(const Tile& t, const Accumulator& acc, const OperandRange& a,
                   const OperandRange& b, const Exact& exact) {
  AddendRange products = product_range(a, b);
  if (!products.plain) return false;
  // Whole quanta or not is what matters here.
  products.lowest = lowest_bit(t.a, t.rows * t.depth) + lowest_bit(t.b, t.lanes * t.depth);
  if (acc.has_product && !products_stay_on_grid(acc.product, products)) return false;
  const GridCertificate c = certify_grid(acc.fmt, acc.rounding, products, state_range(t), a);
  if (!c.valid) return false;
  const float* scaled = scaled_by(t.a, t.rows * t.depth, c.shift);
  if (acc.fmt.overflow == Overflow::kWrap) return run_grid_rule<S, true>(t, acc, c, scaled, exact);
  return run_grid_rule<S, false>(t, acc, c, scaled, exact);
}

// Runs the tile where the certificate holds and `exact` on the parts where it does not; false if
// there is none at all.
template <class S, class Exact>
bool run_certified_tile(const Tile& t, const Accumulator& acc, const OperandRange& a,
                        const OperandRange& b, const Exact& exact) {
  if (acc.fmt.kind == Kind::kFixed) return run_grid_tile<S>(t, acc, a, b, exact);
  if (sizeof(typename S::F) < 64 && acc.rounding != Rounding::kNearestEven) return false;
  const AddendRange products = product_range(a, b);
  const bool rounds = acc.has_product && !products_stay(acc.product, products);
  const AddendRange addends = addend_range(acc, a, b);
  const Certificate certificate =
      certify(acc.fmt, acc.rounding, acc.random_bits, addends, state_range(t), a);
  if (!certificate.valid) return false;
#if !defined(__AVX512F__)
  if (certificate.odd || rounds) return false;
#endif
  const int shift = 1 - certificate.bound;
  if (rounds && !rounded_products_fit(acc, products, shift)) return false;
  const float* scaled = scaled_by(t.a, t.rows * t.depth, shift);
#if defined(__AVX512F__)
  if (rounds)
    return run_certified_rule<S, RoundedProduct>(t, acc, certificate, scaled, shift, exact);
#endif
  return run_certified_rule<S, ExactProduct>(t, acc, certificate, scaled, shift, exact);
}

}  // namespace
}  // namespace lpk
