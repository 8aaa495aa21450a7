// Operands on their way to tensor cores: first they become 16 bits wide, then they go to shared
// memory stage by stage.
#pragma once

#include "cuda/product/plan.h"
#include "cuda/rules/half_steps.h"
#include "cuda/tiles/shared.h"
#include "tensor_map.h"

namespace lpk::cuda {

// A value in the type, an absent tap as zero.
template <bool kBfloat16>
LPK_HD uint16_t half_value(float x) {
  return word_of(x) == kAbsent ? uint16_t{0} : narrow_word<kBfloat16>(x);
}

// Copies 16 bytes to shared memory, or zeros where there is nothing to copy. The bytes are there
// after their group was awaited.
LPK_HD void copy_chunk(uint16_t* to, const uint16_t* from, bool inside) {
#if defined(__CUDA_ARCH__)
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
#else
  const uint16_t nothing[kLaneChunk] = {};
  write_shared<kLaneChunk>(to, inside ? from : nothing);
#endif
}
LPK_HD void end_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all groups but the last kLeft.
template <int kLeft>
LPK_HD void await_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

// A thread's share of the stages, one after another, of an operand whose lanes are side by side.
template <class Map>
class ChunkCopies {
 public:
  LPK_HD ChunkCopies(const Operand& o, const uint16_t* halves, int64_t matrix, int64_t lane,
                     int64_t, int thread)
      : from_(halves + o.batch[matrix] + lane + Map::copied_lane(thread) +
              Map::copied_step(thread, 0) * o.steps.step),
        to_(Map::half_at(Map::copied_step(thread, 0), Map::copied_lane(thread))),
        step_(Map::copied_step(thread, 0)) {}

  // Skips the steps before the first stage.
  LPK_HD void skip(const Operand& o, int64_t steps) { from_ += steps * o.steps.step; }
  LPK_HD void start(const Operand& o, int count, uint16_t* stage) {
    LPK_UNROLL
    for (int e = 0; e < Map::kCopied; ++e) {
      constexpr int kApart = Map::kCopiedApart;
      copy_chunk(stage + to_ + kApart * Map::kLanes * e, from_ + kApart * o.steps.step * e,
                 step_ + kApart * e < count);
    }
    from_ += count * o.steps.step;
  }

 private:
  const uint16_t* from_;
  int to_, step_;
};

// The same for an operand that is looked up element by element, two lanes to a word.
template <class Map>
class PairLookups {
 public:
  LPK_HD PairLookups(const Operand& o, const uint16_t* halves, int64_t matrix, int64_t lane,
                     int64_t lanes, int thread)
      : thread_(thread) {
    for (int n = 0; n < 2; ++n) {
      // Beyond the last lane, the last lane is taken once more: its sums there are never stored.
      const int64_t mine = lane + Map::fetched_lane(thread) + n;
      const uint16_t* from = halves + o.batch[matrix] + o.lanes[mine < lanes ? mine : lanes - 1];
      from_[n] = reinterpret_cast<const char*>(from);
    }
  }

  LPK_HD void skip(const Operand&, int64_t) {}
  template <class Stage>
  LPK_HD void fetch(const Operand& o, const Stage& stage) {
    const int first = Map::fetched_step(thread_, 0);
    const int64_t* table = o.steps.at;
    int64_t straight = (stage.first() + first) * o.steps.step * kBytes;
    LPK_UNROLL
    for (int e = 0; e < Map::kFetched; ++e, straight += o.steps.step * kBytes) {
      const bool inside = first + e < stage.count();
      int64_t at = straight;
      if (inside && table != nullptr) at = table[stage.first() + first + e] * kBytes;
      uint16_t pair[2] = {};
      LPK_UNROLL
      for (int n = 0; n < 2; ++n) {
        if (inside) pair[n] = *reinterpret_cast<const uint16_t*>(from_[n] + at);
      }
      words_[e] = pair_of(pair[0], pair[1]);
    }
  }
  LPK_HD void put(uint16_t* to) const {
    LPK_UNROLL
    for (int e = 0; e < Map::kFetched; ++e) {
      const uint16_t pair[] = {static_cast<uint16_t>(words_[e]),
                               static_cast<uint16_t>(words_[e] >> 16)};
      write_shared<2>(to + Map::half_at(Map::fetched_step(thread_, e), Map::fetched_lane(thread_)),
                      pair);
    }
  }

 private:
  static constexpr int64_t kBytes = sizeof(uint16_t);

  const char* from_[2];
  int thread_;
  uint32_t words_[Map::kFetched];
};

// Reads four matrices of 8 x 8 halves, whose rows the threads of a warp name, and transposes each.
// Word w of thread t holds two rows of column t / 4 of matrix w: row 2 (t % 4) and the next.
LPK_HD void read_matrices(const uint16_t* row, uint32_t* words) {
#if defined(__CUDA_ARCH__)
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at)
               : "memory");
#else
  uint16_t eight[kLaneChunk];
  read_shared<kLaneChunk>(row, eight);
  words[0] = words[1] = words[2] = words[3] = 0;
#endif
}

}  // namespace lpk::cuda
