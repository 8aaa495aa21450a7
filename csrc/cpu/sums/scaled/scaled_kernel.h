// Sums of segments and the outer sums that they enter times their scales, in float32 lanes.
//
//   c = sum of the segment's products;  outer = fma(c, s_a s_b, outer)              exact, product
//                                       outer = fma(round(c s_a), s_b, outer)       left; right
// Both sums are float32 to nearest even: a multiply-add of float32 values is one addition of the
// exact product, and c s_a s_b is exact where the driver found s_a s_b to be a float32.
#pragma once

#include "cpu/lanes/lanes.h"
#include "scaled.h"

namespace lpk {
namespace {

using ScaledFloats = Isa::Floats;

// Rows, and vectors of lanes, whose sums stay in registers; an AVX2 panel is two vectors.
constexpr int kScaledVectors = 2;
constexpr int kScaledRows = Isa::kRegisters == 32 ? 12 : 6;

// Products in order, one multiply-add each.
struct FloatSums {
  using Vector = ScaledFloats;
  const Tile& t;

  template <int kRows, int kVectors>
  LPK_HD void add(int64_t, const Segment& s, int64_t row, int64_t lane,
                  Vector (&c)[kRows][kVectors]) const {
    const float* b[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = lane + v * Isa::kWords;
      b[v] = t.b + at / kPanel * kPanel * t.depth + at % kPanel;
    }
    const float* a = t.a + row * t.depth;
    for (int64_t k = s.first; k < s.end; ++k) {
      Vector column[kVectors];
      for (int v = 0; v < kVectors; ++v) column[v] = load<Vector>(b[v] + k * kPanel);
      for (int r = 0; r < kRows; ++r) {
        const Vector x = Isa::all(a[r * t.depth + k]);
        for (int v = 0; v < kVectors; ++v) c[r][v] = Isa::fma(x, column[v], c[r][v]);
      }
    }
  }
  LPK_HD static Vector value(Vector c) { return c; }
};

template <class Sums, ScaleOrder kOrder>
class ScaledKernel {
 public:
  ScaledKernel(const ScaledTile& tile, const Sums& sums) : t(tile), sums_(sums) {}

  void run() const {
    constexpr int64_t kWide = kScaledVectors * Isa::kWords;
    int64_t lane = 0;
    for (; lane + kWide <= t.lanes; lane += kWide) run_lanes<kScaledVectors>(lane);
    if (lane < t.lanes) run_lanes<1>(lane);
    count_products(Tier::kCertified, t.rows * t.lanes * t.depth);
  }

 private:
  using F = ScaledFloats;

  template <int kVectors>
  void run_lanes(int64_t lane) const {
    int64_t row = 0;
    for (; row + kScaledRows <= t.rows; row += kScaledRows)
      run_group<kScaledRows, kVectors>(row, lane);
    for (; row + 3 <= t.rows; row += 3) run_group<3, kVectors>(row, lane);
    for (; row < t.rows; ++row) run_group<1, kVectors>(row, lane);
  }

  template <int kRows, int kVectors>
  __attribute__((noinline)) void run_group(int64_t row, int64_t lane) const {
    for (int64_t s = 0; s < t.segment_count; ++s) {
      typename Sums::Vector c[kRows][kVectors] = {};
      sums_.template add<kRows, kVectors>(s, t.segments[s], row, lane, c);
      enter(s, row, lane, c);
    }
  }

  // The sums of segment s enter the outer sums.
  template <int kRows, int kVectors>
  LPK_HD void enter(int64_t s, int64_t row, int64_t lane,
                    const typename Sums::Vector (&c)[kRows][kVectors]) const {
    const float* row_scale = t.row_scale + s * t.row_scale_stride + row;
    const float* lane_scale = t.lane_scale + s * t.lanes + lane;
    float* outer = t.outer + row * t.stride + lane;
    const int64_t stride = t.stride;
    F lanes[kVectors];
    for (int v = 0; v < kVectors; ++v) lanes[v] = load<F>(lane_scale + v * Isa::kWords);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const F of_row = Isa::all(row_scale[r]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        float* to = outer + r * stride + v * Isa::kWords;
        const F sum = Sums::value(c[r][v]), total = load<F>(to);
        if constexpr (kOrder == ScaleOrder::kLeft) {
          store(to, Isa::fma(sum * of_row, lanes[v], total));
        } else if constexpr (kOrder == ScaleOrder::kRight) {
          store(to, Isa::fma(sum * lanes[v], of_row, total));
        } else {
          store(to, Isa::fma(sum, of_row * lanes[v], total));
        }
      }
    }
  }

  const ScaledTile& t;
  const Sums& sums_;
};

template <class Sums>
void run_scaled_kernel(const ScaledTile& t, const Sums& sums) {
  switch (t.scale_order) {
    case ScaleOrder::kLeft:
      return ScaledKernel<Sums, ScaleOrder::kLeft>(t, sums).run();
    case ScaleOrder::kRight:
      return ScaledKernel<Sums, ScaleOrder::kRight>(t, sums).run();
    default:
      return ScaledKernel<Sums, ScaleOrder::kProduct>(t, sums).run();
  }
}

}  // namespace
}  // namespace lpk
