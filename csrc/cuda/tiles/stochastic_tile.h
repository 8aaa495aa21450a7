// The certified stochastic tile: four steps of an output at a time, because one random word holds
// their four draws.
//
//   s = a b + sum, truncated;  sum = (bits of s + (2 draw + 1) 2^(22 - m - R)) without the dropped
//   bits
//
// m is man_bits, R random_bits. The word is cut into two halves that each hold two draws as 16-bit
// fields (2 draw + 1, shifted), and one dot product of fields and bytes (dp2a) picks a field,
// shifts it into place and adds it to the bits of s. Truncation composes with what stochastic
// rounding does to a truncated sum, so this is the contract's rule. Sums are watched after every
// fourth step (plan.h has the room for what may happen between).
#pragma once

#include "float_sums.h"
#include "shared.h"

namespace lpk::cuda {

LPK_HD uint32_t rotated(uint32_t x, int by) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_l(x, x, by);
#else
  const int left = by & 31;
  return left == 0 ? x : x << left | x >> (32 - left);
#endif
}

// How the draws of a word become fields, and how fields become numbers at their place.
struct DrawFields {
  int even, odd;  // rotations
  uint32_t mask, ones;
  uint32_t low, high;  // factors of the lower and the upper field

  LPK_HD DrawFields(int man_bits, int random_bits) {
    // Fields are (2 draw + 1) 2^(8 - R + shift); what is added is (2 draw + 1) 2^(22 - m - R).
    const int wanted = 14 - man_bits;
    const int shift = wanted < 7 ? wanted : 7;
    even = 1 + shift;
    odd = shift - 7;
    const uint32_t draw = ((1u << random_bits) - 1) << (9 - random_bits + shift);
    mask = draw << 16 | draw;
    ones = (0x10001u << (8 - random_bits + shift));
    low = 1u << (wanted - shift);
    high = low << 8;
  }
  LPK_HD uint32_t even_fields(uint32_t word) const { return (rotated(word, even) & mask) | ones; }
  LPK_HD uint32_t odd_fields(uint32_t word) const { return (rotated(word, odd) & mask) | ones; }
};

template <bool kTables, bool kChunked>
class StochasticTile : public FloatSums<float, kChunked, Rounding::kStochastic, 1> {
  using Base = FloatSums<float, kChunked, Rounding::kStochastic, 1>;
  using Base::job_;
  using Base::kSide;
  using Base::place;
  using Base::scale_;
  using Base::seen_;
  using Base::sum_;
  using Base::thread_;
  static constexpr int kQuads = kDepth / 4;

 public:
  using typename Base::Map;
  using typename Base::Stage;
  static constexpr int kBlocks = 1;
  // Four steps of a lane lie side by side, so that a thread fetches and reads 16 bytes at a time. A
  // thread's lanes are 16 apart, so that neighbouring threads read neighbours.
  struct Shared {
    alignas(16) float left[2][kQuads][Map::kLanes][4];
    alignas(16) float right[2][kQuads][Map::kLanes][4];
    int redo;
  };

  LPK_HD StochasticTile(const Job& job, const Work& work, int thread)
      : Base(job, work, thread),
        fields_(job.acc.fmt.man_bits, job.acc.random_bits),
        keep_(0xffffffffu << (23 - job.acc.fmt.man_bits)),
        left_(job.sums.left, place().matrix, place().row, job.sums.m, thread),
        right_(job.sums.right, place().matrix, place().col, job.sums.n, thread) {
    const Sums& s = job.sums;
    const Place at = place();
    const uint64_t base = site_base(job.use_seed(), kSiteSum);
    for (int i = 0; i < kSide; ++i) {
      const RowKey key = row_key(base, row_id(s, at.matrix, at.row + Map::row(thread, i)), 0);
      add_[i] = key.add;
      flip_[i] = key.flip;
      column_[i] = column_key(base, col_id(s, at.matrix, at.col + Map::col(thread, i)));
    }
  }

  LPK_HD void fetch(const Stage& stage) {
    left_.fetch(job_.sums.left, stage);
    right_.fetch(job_.sums.right, stage);
  }

  LPK_HD void put(Shared* shared, int buffer) const {
    const int quad = Left::quad(thread_), lane = Left::lane(thread_);
    float left[4];
    for (int e = 0; e < 4; ++e) left[e] = mul_rn(left_.value[e], scale_);
    write_shared<4>(shared->left[buffer][quad][lane], left);
    write_shared<4>(shared->right[buffer][quad][lane], right_.value);
  }

  LPK_HD void multiply(const Shared* shared, int buffer, const Stage& stage) {
    LPK_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const uint32_t word = static_cast<uint32_t>(stage.first()) / 4 + quad;
      float b[kSide][4];
      LPK_UNROLL
      for (int j = 0; j < kSide; ++j)
        read_shared<4>(shared->right[buffer][quad][Map::col(thread_, j)], b[j]);
      LPK_UNROLL
      for (int i = 0; i < kSide; ++i) {
        float a[4];
        read_shared<4>(shared->left[buffer][quad][Map::row(thread_, i)], a);
        const uint32_t mixed = mix32(add_[i] + word) ^ flip_[i];
        LPK_UNROLL
        for (int j = 0; j < kSide; j += 2) {
          add_four(a, b[j], mix32(column_[j] + mixed), &sum_[i][j]);
          add_four(a, b[j + 1], mix32(column_[j + 1] + mixed), &sum_[i][j + 1]);
          seen_[j / 2] |= word_of(sum_[i][j]) | word_of(sum_[i][j + 1]);
        }
      }
    }
  }

  LPK_HD void finish(Shared* shared) { this->store(shared, false); }

 private:
  LPK_HD void add_four(const float (&a)[4], const float (&b)[4], uint32_t word, float* sum) const {
    const uint32_t even = fields_.even_fields(word);
    const uint32_t odd = fields_.odd_fields(word);
    *sum = added(a[0], b[0], even, fields_.low, *sum);
    *sum = added(a[1], b[1], odd, fields_.low, *sum);
    *sum = added(a[2], b[2], even, fields_.high, *sum);
    *sum = added(a[3], b[3], odd, fields_.high, *sum);
  }
  LPK_HD float added(float a, float b, uint32_t fields, uint32_t factors, float sum) const {
    const float s = fma_in<Rounding::kTowardZero>(a, b, sum);
    return float_of(field_added(fields, factors, word_of(s)) & keep_);
  }

  DrawFields fields_;
  uint32_t keep_;
  uint32_t add_[kSide], flip_[kSide], column_[kSide];
  using Left = QuadFetch<kTables, Beyond::kZero>;
  Left left_;
  QuadFetch<kTables, Beyond::kNegativeZero> right_;
};

}  // namespace lpk::cuda
