// One more addition to finished sums: biases, chunks that were summed elsewhere.
#pragma once

#include <algorithm>

#include "cpu/draws/draws.h"

namespace lpk {
namespace {

// Whether round_to_float_nearest_even rounds this way.
LPK_HD bool plain_nearest(const Format& f, Rounding rounding) {
  return f.kind == Kind::kFloat && f.man_bits >= 1 && !f.one_zero &&
         rounding == Rounding::kNearestEven;
}

// nearest_even in a format that plain_nearest accepts, stochastic, or any other mode.
enum class AddMode { kNearest, kStochastic, kOther };

template <class V, AddMode kMode>
struct Addition {
  using D = typename V::D;
  // The keys of draws are made once for so many rows.
  static constexpr int kRows = kMode == AddMode::kStochastic ? 16 : 4;
  const AddBlock& job;
  const Accumulator& acc;
  const Format& float32;

  LPK_HD D rounded(D sum, D addend, D threshold) const {
    D r;
    if constexpr (kMode == AddMode::kNearest) {
      r = round_to_float_nearest_even<D>(odd_sum<D>(sum, addend), acc.outer);
    } else {
      r = rounded_in_any_way(sum, addend, threshold);
    }
    return r == r ? r : Lanes<D>::value(typename Lanes<D>::Bits{} + kCanonicalNan);
  }

  // Long code, which is compiled once and not unrolled.
  __attribute__((noinline)) D rounded_in_any_way(D sum, D addend, D threshold) const {
    return add_rounded<D>(sum, addend, acc.outer, acc.outer_rounding, threshold);
  }

  // x, exact in double, as a float32.
  LPK_HD D single(D x) const { return round_to_float_nearest_even<D>(x, float32); }

  // An addend times the scales of its row and lane. What is not rounded here is exact: a sum of 24
  // bits times one float32, or times two scales of 29 bits together.
  LPK_HD D scaled(D addend, D row, D lane) const {
    switch (job.scale_order) {
      case ScaleOrder::kProduct:
        return addend * single(row * lane);
      case ScaleOrder::kLeft:
        return single(addend * row) * lane;
      case ScaleOrder::kRight:
        return single(addend * lane) * row;
      default:
        return addend * (row * lane);
    }
  }

  // Whole panels of one row, the addend one value or one for each lane; scales: of the row and of
  // the lanes, or null.
  template <class Threshold>
  LPK_HD void add_panel(float* sums, const float* addends, const float* row_scale,
                        const float* lane_scales, const Threshold& threshold) const {
    for (int v = 0; v < kPanel; v += V::kWidth) {
      D addend = job.addend_lane == 0 ? Lanes<D>::all(*addends) : load_floats<V>(addends + v);
      if (row_scale != nullptr)
        addend = scaled(addend, Lanes<D>::all(*row_scale), load_floats<V>(lane_scales + v));
      store_floats<V>(sums + v, rounded(load_floats<V>(sums + v), addend, threshold(v)));
    }
  }

  // The first `width` lanes of a panel, through copies.
  template <class Threshold>
  void add_lanes(float* sums, const float* addends, const float* row_scale,
                 const float* lane_scales, int64_t width, const Threshold& threshold) const {
    float sum[kPanel] = {}, addend[kPanel] = {}, scales[kPanel] = {};
    std::memcpy(sum, sums, width * sizeof *sum);
    std::memcpy(addend, addends, (job.addend_lane == 0 ? 1 : width) * sizeof *addend);
    if (row_scale != nullptr) std::memcpy(scales, lane_scales, width * sizeof *scales);
    add_panel(sum, addend, row_scale, scales, threshold);
    std::memcpy(sums, sum, width * sizeof *sum);
  }

  // kCount rows of one panel, of which `width` lanes are there.
  template <int kCount>
  void run_panel(int64_t row, int64_t lane, int64_t width) const {
    PanelDraws<V, kCount> draws;
    if constexpr (kMode == AddMode::kStochastic) {
      draws.start(job, job.site, acc, row, lane);
      draws.seek(job.k);
    }
    for (int r = 0; r < kCount; ++r) {
      float* sums = job.sum + (row + r) * job.stride + lane;
      const float* addends = job.addend + (row + r) * job.addend_row + lane * job.addend_lane;
      const auto threshold = [&]([[maybe_unused]] int v) {
        if constexpr (kMode == AddMode::kStochastic) return draws.threshold(r, v, job.k);
        return D{};
      };
      const bool has_scales = job.row_scale != nullptr;
      const float* row_scale = has_scales ? job.row_scale + row + r : nullptr;
      const float* lane_scales = has_scales ? job.lane_scale + lane : nullptr;
      if (width == kPanel) {
        add_panel(sums, addends, row_scale, lane_scales, threshold);
      } else {
        add_lanes(sums, addends, row_scale, lane_scales, width, threshold);
      }
    }
  }

  // The loop over panels is the inner one, so that sums are read and written line by line.
  template <int kCount>
  void run_rows(int64_t row) const {
    for (int64_t lane = 0; lane < job.lanes; lane += kPanel)
      run_panel<kCount>(row, lane, std::min<int64_t>(kPanel, job.lanes - lane));
  }

  void run() const {
    int64_t row = 0;
    for (; row + kRows <= job.rows; row += kRows) run_rows<kRows>(row);
    for (; row < job.rows; ++row) run_rows<1>(row);
  }
};

// sum[r][l] <- round(sum[r][l] + addend[r][l]); every NaN becomes 0x7fc00000.
template <class V>
void add_block(const AddBlock& job) {
  const Accumulator acc = accumulator_from(job.accumulator);
  const Format float32 = float32_format();
  if (plain_nearest(acc.outer, acc.outer_rounding)) {
    Addition<V, AddMode::kNearest>{job, acc, float32}.run();
  } else if (acc.outer_rounding == Rounding::kStochastic) {
    Addition<V, AddMode::kStochastic>{job, acc, float32}.run();
  } else {
    Addition<V, AddMode::kOther>{job, acc, float32}.run();
  }
}

}  // namespace
}  // namespace lpk
