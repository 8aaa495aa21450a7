// A thread's share of a stage of both operands, from memory to registers; for certified kernels:
// absent taps and what lies beyond the end are zeros.
#pragma once

#include "float_steps.h"
#include "tiles.h"

namespace lpk::cuda {

// How a thread reads: elements looked up one by one, or of lanes side by side, four neighbours at
// once or four that are 32 apart; then steps have no table and nothing is absent.
enum class Reading { kTables, kFours, kApart };

// What stands for steps beyond the end of a stage: a product of +0 and -0 leaves every sum as it
// is, zeros of either sign too, but toward_negative, where one of +0 and +0 does.
enum class Beyond { kZero, kNegativeZero };

// kKeeps: where lanes lie is looked up once and kept in registers, not at every stage.
template <class Map, Reading kReading, Beyond kBeyond, bool kKeeps = false>
class OperandFetch {
 public:
  static constexpr int kCount = Map::kFetched;
  static constexpr bool kTables = kReading == Reading::kTables;
  static constexpr float kPadding = kBeyond == Beyond::kZero ? 0.0f : -0.0f;
  static_assert(kTables || kCount == 4, "elements of four");
  float value[kCount];

  LPK_HD OperandFetch(const Operand& o, int64_t matrix, int64_t lane, int64_t lanes, int thread)
      : step_(Map::fetched_step(thread)), thread_(thread), lane_(lane) {
    base_ = o.values + o.batch[matrix];
    if (!kTables) base_ += lane + Map::fetched_lane(thread, 0, kReading == Reading::kFours);
    inside_ = static_cast<int>(lanes - lane < Map::kLanes ? lanes - lane : Map::kLanes);
    if constexpr (kKept) {
      for (int e = 0; e < kCount; ++e) {
        // Beyond the last lane its sums once more: they are never stored.
        const int mine = Map::fetched_lane(thread, e, false);
        at_[e] = o.lanes[lane + (mine < inside_ ? mine : inside_ - 1)];
      }
    }
  }

  template <class Stage>
  LPK_HD void fetch(const Operand& o, const Stage& stage) {
    const bool inside = step_ < stage.count();
    if (kTables) {
      const float* at = base_ + (inside ? o.steps[stage.first() + step_] : 0);
      LPK_UNROLL
      for (int e = 0; e < kCount; ++e) {
        float x = kPadding;
        if constexpr (kKept) {
          if (inside) x = at[at_[e]];
        } else {
          const int lane = Map::fetched_lane(thread_, e, false);
          if (inside && lane < inside_) x = at[o.lanes[lane_ + lane]];
        }
        value[e] = word_of(x) == kAbsent ? 0.0f : x;
      }
    } else {
      const float* at = base_ + (stage.first() + step_) * o.steps.step;
      if constexpr (kReading == Reading::kFours) {
        load_four(at, inside, value);
      } else {
        LPK_UNROLL
        for (int e = 0; e < kCount; ++e) value[e] = inside ? at[32 * e] : kPadding;
      }
    }
  }

 private:
  static constexpr bool kKept = kTables && kKeeps;

  LPK_HD static void load_four(const float* from, bool inside, float* to) {
#if defined(__CUDA_ARCH__)
    const float4 x = inside ? *reinterpret_cast<const float4*>(from)
                            : make_float4(kPadding, kPadding, kPadding, kPadding);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
#else
    for (int i = 0; i < 4; ++i) to[i] = inside ? from[i] : kPadding;
#endif
  }

  const float* base_;
  int step_, thread_;
  int inside_;  // lanes of the tile that there are
  int64_t lane_;
  int64_t at_[kKept ? kCount : 1];
};

// Four neighbours in shared memory; `at` is aligned for them.
LPK_HD void store_four(float* at, const float* x) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<float4*>(at) = make_float4(x[0], x[1], x[2], x[3]);
#else
  for (int i = 0; i < 4; ++i) at[i] = x[i];
#endif
}
LPK_HD void store_four(double* at, const double* x) {
#if defined(__CUDA_ARCH__)
  reinterpret_cast<double2*>(at)[0] = make_double2(x[0], x[1]);
  reinterpret_cast<double2*>(at)[1] = make_double2(x[2], x[3]);
#else
  for (int i = 0; i < 4; ++i) at[i] = x[i];
#endif
}

// 16 bytes of neighbours.
LPK_HD void load_group(const double* at, double* x) {
#if defined(__CUDA_ARCH__)
  const double2 v = *reinterpret_cast<const double2*>(at);
  x[0] = v.x, x[1] = v.y;
#else
  x[0] = at[0], x[1] = at[1];
#endif
}
LPK_HD void load_four(const float* at, float* x) {
#if defined(__CUDA_ARCH__)
  const float4 v = *reinterpret_cast<const float4*>(at);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
#else
  for (int i = 0; i < 4; ++i) x[i] = at[i];
#endif
}
LPK_HD void load_group(const float* at, float* x) { load_four(at, x); }

}  // namespace lpk::cuda
