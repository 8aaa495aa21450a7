// A thread's share of a stage of both operands, on its way from memory to registers. This is for
// certified kernels: absent taps and elements beyond the end are zeros.
#pragma once

#include "cuda/product/tiles.h"
#include "cuda/rules/float_steps.h"

namespace lpk::cuda {

// The values in the place of steps beyond the end of a stage. A product of +0 and -0 leaves every
// sum as it is, zeros of either sign too, except in rounding toward_negative, where a product of +0
// and +0 does.
enum class Beyond { kZero, kNegativeZero };

template <Beyond kBeyond>
constexpr float kPadding = kBeyond == Beyond::kZero ? 0.0f : -0.0f;

// kTables: elements are looked up one by one. Without tables, lanes lie side by side and are read
// kWidth neighbours at a time, steps have no table, and nothing is absent. kKeeps: where lanes lie
// is looked up once and kept in registers, and not looked up at every stage.
template <class Map, bool kTables, int kWidth, Beyond kBeyond, bool kKeeps = false>
class OperandFetch {
 public:
  static constexpr int kCount = Map::kFetched;
  static_assert(kCount % kWidth == 0 && (!kTables || kWidth == 1), "whole groups of neighbours");
  float value[kCount];

  LPK_HD OperandFetch(const Operand& o, int64_t matrix, int64_t lane, int64_t lanes, int thread)
      : step_(Map::fetched_step(thread)), thread_(thread), lane_(lane) {
    base_ = o.values + o.batch[matrix];
    if (!kTables) base_ += lane + Map::fetched_lane(thread, 0, kWidth);
    inside_ = static_cast<int>(lanes - lane < Map::kLanes ? lanes - lane : Map::kLanes);
    if constexpr (kKept) {
      for (int e = 0; e < kCount; ++e) {
        // Beyond the last lane, the last lane is taken once more: its sums there are never stored.
        const int mine = Map::fetched_lane(thread, e, 1);
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
        float x = kPadding<kBeyond>;
        if constexpr (kKept) {
          if (inside) x = at[at_[e]];
        } else {
          const int lane = Map::fetched_lane(thread_, e, 1);
          if (inside && lane < inside_) x = at[o.lanes[lane_ + lane]];
        }
        value[e] = word_of(x) == kAbsent ? 0.0f : x;
      }
    } else {
      const float* at = base_ + (stage.first() + step_) * o.steps.step;
      LPK_UNROLL
      for (int e = 0; e < kCount; e += kWidth)
        load_neighbours(at + Map::fetched_lane(0, e, kWidth), inside, value + e);
    }
  }

 private:
  static constexpr bool kKept = kTables && kKeeps;

  LPK_HD static void load_neighbours(const float* from, bool inside, float* to) {
    constexpr float kPad = kPadding<kBeyond>;
#if defined(__CUDA_ARCH__)
    static_assert(kWidth == 1 || kWidth == 2 || kWidth == 4, "a float, two or four");
    if constexpr (kWidth == 4) {
      const float4 x =
          inside ? *reinterpret_cast<const float4*>(from) : make_float4(kPad, kPad, kPad, kPad);
      to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    } else if constexpr (kWidth == 2) {
      const float2 x = inside ? *reinterpret_cast<const float2*>(from) : make_float2(kPad, kPad);
      to[0] = x.x, to[1] = x.y;
    } else {
      *to = inside ? *from : kPad;
    }
#else
    for (int i = 0; i < kWidth; ++i) to[i] = inside ? from[i] : kPad;
#endif
  }

  const float* base_;
  int step_, thread_;
  int inside_;  // lanes of the tile that there are
  int64_t lane_;
  int64_t at_[kKept ? kCount : 1];
};

// A thread's share of a stage as four steps of one lane, looked up or not.
template <bool kTables, Beyond kBeyond>
class QuadFetch {
 public:
  static constexpr int kLanes = 128;
  LPK_HD static int lane(int thread) { return thread % kLanes; }
  LPK_HD static int quad(int thread) { return thread / kLanes; }
  float value[4];

  LPK_HD QuadFetch(const Operand& o, int64_t matrix, int64_t first, int64_t lanes, int thread)
      : step_(4 * quad(thread)) {
    // Beyond the last lane, the last lane is taken once more: its sums there are never stored.
    const int64_t mine = first + lane(thread);
    base_ =
        o.values + o.batch[matrix] + (kTables ? o.lanes[mine < lanes ? mine : lanes - 1] : mine);
  }

  template <class Stage>
  LPK_HD void fetch(const Operand& o, const Stage& stage) {
    LPK_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int step = step_ + e;
      float x = kPadding<kBeyond>;
      if (step < stage.count()) {
        const int64_t at = stage.first() + step;
        x = base_[kTables ? o.steps[at] : at * o.steps.step];
      }
      value[e] = kTables && word_of(x) == kAbsent ? 0.0f : x;
    }
  }

 private:
  const float* base_;
  int step_;
};

}  // namespace lpk::cuda
