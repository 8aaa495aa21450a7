// Rows and panels of a tile as the certified kernels take them: the sums in registers, the loop
// over k, the closing of chunks, and the way back where a bound is passed.
#pragma once

#include "certified_operands.h"
#include "exact_sums.h"
#include "fixed_rules.h"
#include "snapshot.h"

// Clang would leave the steps of longer rules in loops, with the sums in memory.
#if defined(__clang__)
#define LPK_CLANG_UNROLL _Pragma("GCC unroll 16")
#else
#define LPK_CLANG_UNROLL
#endif

namespace lpk {
namespace {

// The rule of the sums, scaled by 2^shift, may add a chunk to the outer sum as well: (B) of
// common/certificate.h for two addends of q bits, both multiples of the last place of the
// subnormals; the bound is the format's, and it is watched as for the sums.
inline bool closes_by_sum_rule(const Precision& in, const Accumulator& acc, int shift) {
  const Format& f = acc.fmt;
  const Format& o = acc.outer;
  const bool alike = o.kind == f.kind && o.man_bits == f.man_bits && o.emin == f.emin &&
                     o.max == f.max && o.subnormals == f.subnormals;
  return alike && o.overflow == f.overflow && acc.outer_rounding == acc.rounding && f.subnormals &&
         rounds_twice_safely(in, f.man_bits + 1, f.man_bits + 1) &&
         f.emin - f.man_bits + shift >= in.emin && 1 - shift >= std::min(in.enough, log2_of(f.max));
}

// The place where a rule works: its operands, the shift of the sums, and whether these are watched.
template <class S>
struct CertifiedWork : CertifiedJob {
  const Operands<S>& operands;
  int shift;
  bool watched;
};

// The kind of tile: kMarked has absent taps that must be passed over.
enum class Taps { kPlain, kMarked, kSpread };

// The constants that a group needs beside its tile, made once a tile.
template <class S, class Rule, class Product>
struct CertifiedRun {
  using Floats = S;
  static constexpr int kRows = Rule::kRows;
  using F = typename S::F;
  using Scalar = typename S::Scalar;
  static constexpr int kWidth = S::kWidth;
  static constexpr int kVectors = kPanel / kWidth;

  const Accumulator& acc;
  const Operands<S>& operands;
  F scale, unscale;
  Rule rule;
  Product product;
  ChunkEnd end;
  bool closes;
  bool watched;  // inner sums may reach the bound; outer ones always may

  CertifiedRun(const CertifiedWork<S>& work, const Rule& sum_rule, const Product& product_rule)
      : acc(work.acc),
        operands(work.operands),
        scale(S::all(std::ldexp(1.0, work.shift))),
        unscale(S::all(std::ldexp(1.0, -work.shift))),
        rule(sum_rule),
        product(product_rule),
        end(acc),
        closes(Rule::kClosesChunks && closes_by_sum_rule(S::kPrecision, acc, work.shift)),
        watched(Rule::kTracked && work.watched) {}

  // outer <- round(outer + inner), inner <- +0; in memory only if the block ends here.
  template <int kRows, int kColumns>
  LPK_HD void close_chunk(const Tile& t, F (&sum)[kRows][kColumns], F (&seen)[4], bool last) const {
    float* outer = t.outer;
    const int64_t stride = t.stride;
    // Both loops are unrolled so that the sums stay in registers.
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kColumns; ++v) {
        const F total =
            rule.round(rule.fma(S::load(outer + v * kWidth), scale, sum[r][v]), NoDraws{});
        seen[v % 4] = Rule::joined(seen[v % 4], total);
        S::store(outer + v * kWidth, total * unscale);
        sum[r][v] = S::all(0.0f);
      }
      outer += stride;
    }
    if (!last) return;
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kColumns; ++v) S::store(t.inner + r * stride + v * kWidth, S::all(0.0f));
    }
  }

  // Where the rows of A begin. Three rows of a matrix share one pointer: there are fewer general
  // registers than rows.
  template <int kRows, bool kSpread>
  struct Rows {
    const Scalar* first[kSpread ? kRows : (kRows + 2) / 3];
    int64_t stride;

    Rows(const Tile& t, const Scalar* a) : stride(t.depth) {
      int i = 0;
      for (const Scalar*& p : first) {
        p = kSpread ? a + t.row_at[i] : a + 3 * i * stride;
        ++i;
      }
    }
    LPK_HD const Scalar* at(int r, int64_t k) const {
      return kSpread ? first[r] + k : first[r / 3] + (k + r % 3 * stride);
    }
  };

  // The kRows rows and kPanels panels of `t`. Returns whether the certificate held; if not, nothing
  // has changed.
  template <int kRows, int kPanels, Taps kTaps>
  bool group(const Tile& t) const {
    [[maybe_unused]] const typename Rule::Direction direction;
    return group_inside<kRows, kPanels, kTaps>(t);
  }

 private:
  // The end of a chunk in a rounding of the processor that is not the usual one. Neither this
  // function nor the next is inlined: the instruction that sets the rounding might touch the sums,
  // which would then be stored at every step.
  template <int kRows, int kPanels>
  __attribute__((noinline)) void close_as_usual(const Tile& t, int64_t closed) const {
    const typename Rule::Direction::Paused usual;
    for (int p = 0; p < kPanels; ++p)
      end.close(t, 0, kRows, p * kPanel, static_cast<uint64_t>(closed));
  }

  template <int kRows, int kPanels, Taps kTaps>
  __attribute__((noinline)) bool group_inside(const Tile& t) const {
    constexpr int kColumns = kPanels * kVectors;
    constexpr bool kSpread = kTaps == Taps::kSpread;
    constexpr bool kMarks = Rule::kKeepsZeros && kTaps != Taps::kPlain;
    constexpr bool kExact = std::is_same_v<Product, ExactProduct>;
    const Snapshot<kRows, kPanels * kPanel> before(t);
    if (Rule::kTakesInfinities ? before.has_nan() : before.infinite) return false;
    if (before.negative_zero && !rule.keeps_zeros()) return false;

    const Rows<kRows, kSpread> rows(t, operands.a_of(t));
    const Scalar* b = operands.b_of(t);
    F sum[kRows][kColumns];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kColumns; ++v) {
        sum[r][v] = rule.enter(S::load(t.inner + r * t.stride + v * kWidth) * scale);
      }
    }
    [[maybe_unused]] typename Rule::template PanelState<kRows> draws[kPanels];
    [[maybe_unused]] const uint32_t* words[kPanels];
    typename Rule::LaneState lanes;
    if constexpr (Rule::kStochastic) {
      for (int p = 0; p < kPanels; ++p) draws[p].start(t, kSiteSum, acc, 0, p * kPanel);
      lanes = typename Rule::LaneState(draws[0].layout, 22 - acc.fmt.man_bits - acc.random_bits);
    }
    // One OR for two sums; four chains of them.
    F seen[4] = {S::all(0.0f), S::all(0.0f), S::all(0.0f), S::all(0.0f)};
    const auto step = [&](int64_t k, [[maybe_unused]] int draw_bit,
                          bool looks) __attribute__((always_inline)) {
      if constexpr (Rule::kStochastic) lanes.from(draw_bit);
      const int64_t at = kSpread ? t.step_at[k] : k;
      F column[kColumns];
      [[maybe_unused]] F enlarged[kColumns];
      for (int v = 0; v < kColumns; ++v) {
        column[v] = S::operands(b + (v / kVectors * t.depth + k) * kPanel + v % kVectors * kWidth);
        if constexpr (!kExact) enlarged[v] = product.enlarged(column[v]);
      }
      LPK_CLANG_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (kMarks && t.row_absent(r, k)) continue;
        LPK_CLANG_UNROLL
        for (int v = 0; v < kColumns; ++v) {
          if constexpr (Rule::kStochastic)
            lanes.take(words[v / kVectors] + r * kPanel + v % kVectors * kWidth);
          const Scalar* row = rows.at(r, at);
          F left = kSpread ? S::operands(row + v % kVectors * kWidth) : S::all(*row);
          if constexpr (kSpread && kPanels > 1) S::hold(&left);
          F s;
          if constexpr (kExact) {
            s = rule.fma(left, column[v], sum[r][v]);
          } else {
            const F rounded = product(left, column[v], enlarged[v]);
            if constexpr (Product::kWatched)
              seen[v % 4] = S::either(seen[v % 4], product.seen(rounded));
            s = rule.fma(rounded, product.unit, sum[r][v]);
          }
          const F next = rule.round(s, lanes);
          if (kMarks && t.lane_absent != nullptr) {
            const uint32_t marks = t.lane_absent[v / kVectors * t.depth + k];
            sum[r][v] = S::keep(marks >> (v % kVectors * kWidth), sum[r][v], next);
          } else {
            sum[r][v] = next;
          }
        }
      }
      if (looks) {
        const F* flat = &sum[0][0];
        for (int i = 0; i + 1 < kRows * kColumns; i += 2) {
          seen[i / 2 % 4] = Rule::joined(seen[i / 2 % 4], Rule::joined(flat[i], flat[i + 1]));
        }
        if (kRows * kColumns % 2 != 0) seen[0] = Rule::joined(seen[0], flat[kRows * kColumns - 1]);
      }
    };
    const auto steps = [&](int64_t from, int64_t to, bool looks) __attribute__((always_inline)) {
      if constexpr (Rule::kStochastic) {
        // Steps that share random words: the sums stay in registers from one to the next.
        const DrawLayout& layout = draws[0].layout;
        for (int64_t k = from; k < to;) {
          for (int p = 0; p < kPanels; ++p)
            words[p] = draws[p].seek_inline(static_cast<uint64_t>(t.position_of(k)));
          const int64_t served = served_by_word(t, layout, k, to);
          if (served - k == 4) {
            // All steps that one word serves, as positions increase. Unrolled, without the loop's
            // own instructions, the processor looks further ahead, at the next words.
#pragma GCC unroll 4
            for (int field = 0; field < 4; ++field) step(k + field, layout.shift_of(field), looks);
            k = served;
          }
          for (; k < served; ++k)
            step(k, layout.shift_of(static_cast<uint64_t>(t.position_of(k))), looks);
        }
      } else {
        for (int64_t k = from; k < to; ++k) step(k, 0, looks);
      }
    };
    const auto span = [&](int64_t from, int64_t to, int64_t closed) __attribute__((always_inline)) {
      if constexpr (Rule::kTracked && S::kFewRegisters) {
        // A loop of their own: where sums are looked at not all of them fit in registers.
        watched ? steps(from, to, true) : steps(from, to, false);
      } else {
        steps(from, to, watched);
      }
      if constexpr (Rule::kClosesChunks) {
        if (closes && closed >= 0) return close_chunk(t, sum, seen, to == t.depth);
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kColumns; ++v) {
          S::store(t.inner + r * t.stride + v * kWidth, rule.leave(sum[r][v]) * unscale);
        }
      }
      if (closed < 0) return;
      if constexpr (std::is_same_v<typename Rule::Direction, UsualRounding>) {
        for (int p = 0; p < kPanels; ++p)
          end.close(t, 0, kRows, p * kPanel, static_cast<uint64_t>(closed));
      } else {
        close_as_usual<kRows, kPanels>(t, closed);
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kColumns; ++v) sum[r][v] = rule.enter(S::all(0.0f));
      }
    };
    for_each_span(t, acc.chunk, span);
    if constexpr (!Rule::kTracked) return true;
    if (!rule.broken(Rule::joined(Rule::joined(seen[0], seen[1]), Rule::joined(seen[2], seen[3]))))
      return true;
    before.restore(t);
    return false;
  }
};

// Some rows and lanes of a tile, as a tile.
__attribute__((noinline)) inline Tile part_of(const Tile& t, int64_t row, int64_t rows,
                                              int64_t lane, int64_t lanes) {
  Tile part = t;
  part.rows = rows;
  part.lanes = lanes;
  if (t.spread()) {
    part.row_at += row;
  } else {
    part.a += row * t.depth;
  }
  if (t.absent != nullptr) part.absent += row * t.depth;
  if (t.lane_absent != nullptr) part.lane_absent += lane / kPanel * t.depth;
  part.marks_row += row;
  part.marks_lane += lane;
  part.b += lane * t.depth;
  part.inner += row * t.stride + lane;
  part.outer += row * t.stride + lane;
  part.row_id += row;
  part.lane_id += lane;
  return part;
}

// Makes all of a tile, group by group. Groups for which the certificate does not hold go to
// `exact`. After several of them in a row, as many of the next groups go there untried, because
// they are likely to fail as well.
template <Taps kTaps, class Run>
class CertifiedGroups {
 public:
  CertifiedGroups(const Tile& t, const Run& run, const ExactSums& exact)
      : t_(t), run_(run), exact_(exact) {}

  // Whole groups go panel by panel, so that a panel stays in the first cache. The rows left over go
  // one by one against several panels at a time, or their few sums would wait for each other.
  void run() {
    for (int64_t lane = 0; lane < t_.lanes; lane += kPanel) whole_groups(lane);
    int64_t row = 0;
    while (const int64_t count = group_rows(t_.rows - row)) row += count;
    const int64_t across = S::kRowPanels * kPanel;
    for (int64_t lane = 0; lane < t_.lanes;) {
      const bool wide = kTaps != Taps::kSpread && lane + across <= t_.lanes;
      rest(row, lane, wide);
      lane += wide ? across : kPanel;
    }
  }

 private:
  using S = typename Run::Floats;
  static constexpr int kRows = kTaps == Taps::kSpread ? S::kSpreadRows : Run::kRows;
  // Tiles with marks, which are rare, have no groups of a few rows.
  static constexpr int kFewRows = kTaps == Taps::kMarked || kRows < 4 ? kRows : 4;

  // The rows of the next group; 0 if too few rows are left for one.
  static int64_t group_rows(int64_t left) {
    return left >= kRows ? kRows : left >= kFewRows ? kFewRows : 0;
  }

  void whole_groups(int64_t lane) {
    int64_t row = 0;
    while (const int64_t count = group_rows(t_.rows - row)) {
      count == kRows ? group<kRows, 1>(row, lane) : group<kFewRows, 1>(row, lane);
      row += count;
    }
  }

  void rest(int64_t row, int64_t lane, bool wide) {
    for (; row < t_.rows; ++row) {
      if (!wide) {
        group<1, 1>(row, lane);
      } else if constexpr (kTaps != Taps::kSpread) {
        group<1, S::kRowPanels>(row, lane);
      }
    }
  }

  template <int kGroup, int kPanels>
  __attribute__((noinline)) void group(int64_t row, int64_t lane) {
    constexpr int64_t kGroupLanes = kPanels * kPanel;
    if (untried_ > 0) {
      --untried_;
    } else {
      const Tile part = part_of(t_, row, kGroup, lane, kGroupLanes);
      if (run_.template group<kGroup, kPanels, kTaps>(part)) {
        failures_ = 0;
        return;
      }
      untried_ = failures_;
      failures_ = 2 * failures_ + 1;
    }
    exact_(part_of(t_, row, kGroup, lane, kGroupLanes));
  }

  const Tile& t_;
  const Run& run_;
  const ExactSums& exact_;
  int64_t failures_ = 0;  // in a row, those untried with them
  int64_t untried_ = 0;   // of the next groups
};

}  // namespace
}  // namespace lpk
