// Order "native": sums of chunks on tensor cores, in half precision or bfloat16 that holds the
// operands, with float32 sums; the additions between chunks by outer_rule.h.
//
//   part  <- part + A B              the steps of a chunk, 16 at a time, in the hardware's order
//   outer <- round(outer + part)     at the end of every chunk, part <- +0
//
// Inside a chunk only what is exact in float32 is defined; absent taps are zeros there. Nothing is
// done again.
#pragma once

#include "fetch.h"
#include "half_steps.h"
#include "outer_rule.h"
#include "tensor_map.h"
#include "totals.h"

namespace lpk::cuda {

// Two values of the type in a word.
template <bool kBfloat16>
LPK_HD uint32_t narrow_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  // The upper halves of both: exact, because bfloat16 holds them.
  if (kBfloat16) return __byte_perm(word_of(low), word_of(high), 0x7632);
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
#else
  return pair_of(narrow_word<kBfloat16>(low), narrow_word<kBfloat16>(high));
#endif
}

// A thread's share of a stage of one operand, two steps of a lane in a word.
template <bool kTables, int kSteps>
class PairFetch {
 public:
  using Map = TensorMap;
  static constexpr int kPairs = kSteps / 16;

  LPK_HD PairFetch(const Operand& o, int64_t matrix, int64_t lane, int64_t lanes, int thread)
      : thread_(thread), lane_(lane) {
    base_ = o.values + o.batch[matrix];
    if (!kTables) base_ += lane + Map::fetched_lane(thread, 0, true);
    inside_ = static_cast<int>(lanes - lane < Map::kLanes ? lanes - lane : Map::kLanes);
  }

  template <class Stage>
  LPK_HD void fetch(const Operand& o, const Stage& stage) {
    LPK_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      LPK_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int step = 2 * Map::fetched_pair(thread_, p) + half;
        fetch_step(o, stage.first() + step, step < stage.count(), value_[p][half]);
      }
    }
  }

  template <bool kBfloat16>
  LPK_HD void put(uint32_t* stage) const {
    LPK_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      uint32_t* to = stage + Map::fetched_pair(thread_, p) * Map::kRow;
      uint32_t words[4];
      for (int e = 0; e < 4; ++e)
        words[e] = narrow_pair<kBfloat16>(value_[p][0][e], value_[p][1][e]);
      if constexpr (kTables) {
        for (int e = 0; e < 4; ++e) to[Map::fetched_lane(thread_, e, false)] = words[e];
      } else {
        store_four(to + Map::fetched_lane(thread_, 0, true), words);
      }
    }
  }

 private:
  LPK_HD void fetch_step(const Operand& o, int step, bool inside, float* to) const {
    if (!kTables) {
      const float* at = base_ + step * o.steps.step;
      for (int e = 0; e < 4; ++e) to[e] = 0.0f;
      if (inside) lpk::cuda::load_four(at, to);
      return;
    }
    const float* at = base_ + (inside ? o.steps[step] : 0);
    LPK_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int lane = Map::fetched_lane(thread_, e, false);
      const float x = inside && lane < inside_ ? at[o.lanes[lane_ + lane]] : 0.0f;
      to[e] = word_of(x) == kAbsent ? 0.0f : x;
    }
  }

  LPK_HD static void store_four(uint32_t* at, const uint32_t* words) {
#if defined(__CUDA_ARCH__)
    *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
#else
    for (int e = 0; e < 4; ++e) at[e] = words[e];
#endif
  }

  const float* base_;
  int thread_;
  int inside_;  // lanes of the tile that there are
  int64_t lane_;
  float value_[kPairs][2][4];
};

template <bool kBfloat16, bool kTables>
class TensorTile {
 public:
  using Map = TensorMap;
  static constexpr int kSteps = 32;
  using Stage = StagesOf<kSteps>;
  static constexpr bool kExact = false;
  static constexpr int kBlocks = 1;
  struct Shared {
    alignas(16) uint32_t left[2][kSteps / 2 * Map::kRow];
    alignas(16) uint32_t right[2][kSteps / 2 * Map::kRow];
  };

  LPK_HD TensorTile(const Job& job, int64_t tile, int thread)
      : job_(job),
        thread_(thread),
        tile_(tile),
        rule_(job.acc, job.plan->inside),
        left_(job.sums.left, place().matrix, place().row, job.sums.m, thread),
        right_(job.sums.right, place().matrix, place().col, job.sums.n, thread) {
    for (int i = 0; i < Map::kRows; ++i) {
      for (int n = 0; n < kRowOutputs; ++n) part_[i][n] = 0.0f;
      for (int n = 0; n < kKept; ++n) outer_[i][n] = 0.0f;
    }
  }

  LPK_HD void begin(Shared*) const {}
  LPK_HD void fetch(const Stage& stage) {
    left_.fetch(job_.sums.left, stage);
    right_.fetch(job_.sums.right, stage);
  }
  LPK_HD void put(Shared* shared, int buffer) const {
    left_.template put<kBfloat16>(shared->left[buffer]);
    right_.template put<kBfloat16>(shared->right[buffer]);
  }

  LPK_HD void multiply(const Shared* shared, int buffer, const Stage& stage) {
    const uint32_t* left = shared->left[buffer];
    const uint32_t* right = shared->right[buffer];
    LPK_UNROLL
    for (int h = 0; h < kSteps / 16; ++h) {
      if (16 * h < stage.count()) multiply_sixteen(left, right, h);
    }
  }

  LPK_HD void close(Shared*, [[maybe_unused]] int chunk) {
    LPK_UNROLL
    for (int i = 0; i < Map::kRows; ++i) {
      if constexpr (kTables) {
        float outer[kRowOutputs];
        LPK_UNROLL
        for (int n = 0; n < kRowOutputs; ++n) outer[n] = chunk == 0 ? 0.0f : *outer_at(i, n);
        rule_.add(outer, part_[i]);
        LPK_UNROLL
        for (int n = 0; n < kRowOutputs; ++n) *outer_at(i, n) = outer[n];
      } else {
        rule_.add(outer_[i], part_[i]);
      }
      LPK_UNROLL
      for (int n = 0; n < kRowOutputs; ++n) part_[i][n] = 0.0f;
    }
  }

  LPK_HD void finish(Shared*) const {
    const Sums& s = job_.sums;
    const Place at = place();
    float* out = s.out + s.batch[at.matrix];
    LPK_UNROLL
    for (int i = 0; i < Map::kRows; ++i) {
      LPK_UNROLL
      for (int n = 0; n < kRowOutputs; ++n) {
        const int64_t row = at.row + Map::row(thread_, i * kRowOutputs + n);
        const int64_t col = at.col + Map::col(thread_, i * kRowOutputs + n);
        if (row < s.m && col < s.n) out[s.rows[row] + s.cols[col]] = canonical_float(outer(i, n));
      }
    }
  }

  LPK_HD void report(const Shared*) const {
    if (thread_ == 0) job_.redo[tile_] = 0;
  }

 private:
  // Outputs of a row of fragments. Outer sums stay in registers, or where tables need those in
  // memory, each thread its own.
  static constexpr int kRowOutputs = 4 * Map::kCols;
  static constexpr int kKept = kTables ? 1 : kRowOutputs;

  LPK_HD Place place() const { return place_of(job_.sums, kTile, tile_); }
  LPK_HD float* outer_at(int i, int n) const {
    return job_.outer + (tile_ * Map::kOutputs + i * kRowOutputs + n) * Map::kThreads + thread_;
  }
  LPK_HD float outer(int i, int n) const {
    if constexpr (kTables) return *outer_at(i, n);
    return outer_[i][n];
  }

#if defined(__CUDA_ARCH__)
  __device__ __forceinline__ void multiply_sixteen(const uint32_t* left, const uint32_t* right,
                                                   int h) {
    uint32_t b[Map::kCols][2];
    LPK_UNROLL
    for (int j = 0; j < Map::kCols; ++j) {
      b[j][0] = right[Map::right_word(thread_, j, 0, h)];
      b[j][1] = right[Map::right_word(thread_, j, 1, h)];
    }
    LPK_UNROLL
    for (int i = 0; i < Map::kRows; ++i) {
      uint32_t a[4];
      LPK_UNROLL
      for (int word = 0; word < 4; ++word) a[word] = left[Map::left_word(thread_, i, word, h)];
      LPK_UNROLL
      for (int j = 0; j < Map::kCols; ++j) multiply_fragment(a, b[j], part_[i] + 4 * j);
    }
  }
  __device__ __forceinline__ static void multiply_fragment(const uint32_t* a, const uint32_t* b,
                                                           float* sum) {
    if (kBfloat16) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
#else
  // What the instruction does, step by step, from the words that the threads of the warp load: of a
  // fragment of the left operand word w of lane l holds row l / 4 + w % 2 * 8 and steps 2 (l % 4) +
  // w / 2 * 8 and the next, of the right one column l / 4 and steps 2 (l % 4) + w * 8 and the next
  // (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type").
  void multiply_sixteen(const uint32_t* left, const uint32_t* right, int h) {
    const int warp = thread_ / 32 * 32;
    const int lane = thread_ % 32;
    for (int n = 0; n < Map::kOutputs; ++n) {
      const int i = n / (4 * Map::kCols), j = n / 4 % Map::kCols, word = n % 4;
      const int row = lane / 4 + word / 2 * 8;
      const int col = lane % 4 * 2 + word % 2;
      for (int k = 0; k < 16; ++k) {
        const int holder = k % 8 / 2;
        const int left_word = row / 8 + k / 8 * 2;
        const uint32_t a = left[Map::left_word(warp + row % 8 * 4 + holder, i, left_word, h)];
        const uint32_t b = right[Map::right_word(warp + col * 4 + holder, j, k / 8, h)];
        part_[i][n % kRowOutputs] += half_of(a, k % 2) * half_of(b, k % 2);
      }
    }
  }
  static float half_of(uint32_t word, int which) {
    return wide_float<kBfloat16>(static_cast<uint16_t>(word >> (16 * which)));
  }
#endif

  const Job& job_;
  int thread_;
  int64_t tile_;
  OuterRule rule_;
  PairFetch<kTables, kSteps> left_, right_;
  float part_[Map::kRows][kRowOutputs], outer_[Map::kRows][kKept];
};

}  // namespace lpk::cuda
