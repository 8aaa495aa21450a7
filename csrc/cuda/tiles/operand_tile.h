// Sums of whole blocks of products that are aligned by the exponents of their operands: the steps
// of tensor cores (common/orders.h).
//
// A product is added, toward zero, to 2^52 units with the product's sign; the last place of such a
// number is a unit. When the 2^52 units are subtracted again, the product cut toward zero is left.
// This takes one multiply-add, which does not round the product, and one subtraction. Products are
// below 2^(aligned_bits + 2) <= 2^42 units, and the at most 257 addends of a block are together
// below 2^51 units, so double holds every sum of them. In float32, with 2^23 units, the same holds
// where single_fits says so and the operands are not too large: the sums of fp8 need no doubles.
#pragma once

#include "aligned_tile.h"

namespace lpk::cuda {

// These stand in place of the exponent of a zero, an infinity or a NaN, and of an absent tap. A
// product with such an operand has an exponent below all that count; if it is below kAbsentSum, the
// product is absent.
constexpr int kNoExponent = -(1 << 20);
constexpr int kAbsentExponent = -(1 << 24);
constexpr int kAbsentSum = -(1 << 23);

LPK_HD int operand_exponent(float x, double min_normal, bool marked) {
  if (marked && word_of(x) == kAbsent) return kAbsentExponent;
  const double binade = counted_binade<double>(x, min_normal);
  return binade == 0.0 ? kNoExponent : static_cast<int>(word_of(binade) >> 20) - 1023;
}

// The power of two that the largest exponent of some products stands for, or 0 if none counts, as
// operand_place takes it.
LPK_HD double binade_of(int exponent) {
  return exponent < kNoExponent / 2 ? 0.0 : power_of_two(exponent);
}

// The upper word of 2^52 units, or 2^23 units.
template <class Real>
LPK_HD uint32_t grid_of(double unit) {
  if constexpr (sizeof(Real) == 8) return word_of(unit) + (52u << 20);
  return ((word_of(unit) >> 20) - 1023 + 127 + 23) << 23;
}

// a b cut toward zero; infinities and NaN stay.
LPK_HD double cut_product(double a, double b, uint32_t grid) {
#if defined(__CUDA_ARCH__)
  const double magic = double_of(grid | ((word_of(a) ^ word_of(b)) & 0x80000000u));
  return __dsub_rn(__fma_rz(a, b, magic), magic);
#else
  const double unit = double_of(grid) * 0x1p-52;
  return Lanes<double>::trunc(a * b * (1.0 / unit)) * unit;
#endif
}
LPK_HD float cut_product(float a, float b, uint32_t grid) {
  const float magic = float_of(grid | ((word_of(a) ^ word_of(b)) & 0x80000000u));
  return sub_rn(fma_in<Rounding::kTowardZero>(a, b, magic), magic);
}

// The least and the largest exponent of a block in float32: with the least one 2^23 units are a
// normal number, and with the largest one 2^24 units are finite.
constexpr int kSingleLeast = -126;
constexpr int kSingleHighest = 103;

// Whether float32 is enough if operands are not too large: a block adds to less than 2^24 units,
// the exponents that blocks have at least are neither too small nor large, a sum starts at zero,
// and the roundings of sums make sums less than 4 times as large.
LPK_HD bool single_fits(const Job& job) {
  const Accumulator& acc = job.acc;
  if (acc.interleaved > 1 || acc.aligned_bits > 20) return false;
  if (int64_t{acc.block + 1} << (acc.aligned_bits + 2) > 1 << 24) return false;
  const double products = acc.left_min_normal * acc.right_min_normal;
  const double least = products < acc.fmt.min_normal ? products : acc.fmt.min_normal;
  const double lowest = power_of_two(kSingleLeast);
  if (acc.least_binade > 1.0 || acc.fmt.min_normal > 1.0) return false;
  if (least < lowest && acc.least_binade < lowest) return false;
  if (acc.chunk == 0 && job.sums.initial != nullptr) return false;
  const bool grows = acc.rounding != Rounding::kTowardZero;
  return !grows || job.span <= int64_t{1} << acc.fmt.man_bits;
}

// Whether float32 is enough for these operands: no exponent of a block lies beyond kSingleHighest.
// Products lie below 4 times the power of two that they count as.
LPK_HD bool single_certified(const Job& job) {
  if (!single_fits(job)) return false;
  const auto highest = [](const Facts* facts, double min_normal) {
    const int exponent = static_cast<int>(facts->highest) - 127;
    const int least = static_cast<int>(word_of(min_normal) >> 20) - 1023;
    return exponent > least ? exponent : least;
  };
  int rise = 4;
  for (int64_t products = job.span; products != 0; products >>= 1) ++rise;
  return highest(job.sums.left.facts, job.acc.left_min_normal) +
             highest(job.sums.right.facts, job.acc.right_min_normal) + rise <=
         kSingleHighest;
}

// Real: the type of products and their sums. kTurns: blocks take turns.
template <class Real, bool kTurns>
class OperandTile : public OrderedTile<false> {
  static constexpr int kSide = kOrderedSide;

 public:
  using Stage = RunStages<kTurns>;
  static constexpr bool kSingle = sizeof(Real) == 4;
  struct Shared {
    Kept<float> sum, outer;
    Kept<Real> total;
    Kept<int> largest;
    // In each line the lanes of a thread lie side by side: lane_slot.
    alignas(16) Real left[2][kDepth][Map::kLanes];
    alignas(16) Real right[2][kDepth][Map::kLanes];
    alignas(16) int left_exponents[2][kDepth][Map::kLanes];
    alignas(16) int right_exponents[2][kDepth][Map::kLanes];
    // Where blocks take turns: whether the block has each step.
    int taken[2][kDepth];
  };
  using OrderedTile::OrderedTile;

  LPK_HD void begin(Shared* shared) const { begin_sums(shared); }

  LPK_HD void fetch(const Stage& stage) {
    OrderedTile::fetch(stage);
    const int step = Map::fetched_step(thread_);
    if (kTurns && step < stage.count()) taken_ = stage.takes(position(stage.first() + step));
  }

  LPK_HD void put(Shared* shared, int buffer) const {
    const int step = Map::fetched_step(thread_);
    if (kTurns && thread_ % 32 == 0) write_shared<1>(&shared->taken[buffer][step], &taken_);
    const Sums& s = job_.sums;
    LPK_UNROLL
    for (int e = 0; e < kFetched; ++e) {
      const int lane = Map::fetched_lane(thread_, e, 1);
      const Real left = left_values_[e], right = right_values_[e];
      const int exponents[2] = {
          operand_exponent(left_values_[e], job_.acc.left_min_normal, s.left.absent),
          operand_exponent(right_values_[e], job_.acc.right_min_normal, s.right.absent)};
      const int slot = lane_slot(lane);
      write_shared<1>(&shared->left[buffer][step][slot], &left);
      write_shared<1>(&shared->right[buffer][step][slot], &right);
      write_shared<1>(&shared->left_exponents[buffer][step][slot], &exponents[0]);
      write_shared<1>(&shared->right_exponents[buffer][step][slot], &exponents[1]);
    }
  }

  LPK_HD void multiply(Shared* shared, int buffer, const Stage& stage) {
    if (stage.measures()) {
      measure(shared, buffer, stage);
      if (stage.ends()) place(shared);
    }
    if (!stage.adds()) return;
    if (job_.sums.left.absent || job_.sums.right.absent) {
      add_block<true>(shared, buffer, stage);
    } else {
      add_block<false>(shared, buffer, stage);
    }
    if (stage.ends()) round_sums(shared, stage.key());
  }

  LPK_HD void close(Shared* shared, int64_t chunk) const {
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) close_sum(shared, n, chunk);
  }

 private:
  // Lanes p and p + 16 belong to the thread at place p.
  LPK_HD static int lane_slot(int lane) { return lane % 16 * kSide + lane / 16; }
  template <class T>
  LPK_HD void read_both(const T* left, const T* right, T (&a)[kSide], T (&b)[kSide]) const {
    read_shared<kSide>(&left[lane_slot(Map::row(thread_, 0))], a);
    read_shared<kSide>(&right[lane_slot(Map::col(thread_, 0))], b);
  }

  // Calls visit(step) for each of the block's steps in a stage; most stages are full.
  template <class Visit>
  LPK_HD void each_step(const Shared* shared, int buffer, const Stage& stage,
                        const Visit& visit) const {
    if (!kTurns && stage.count() == kDepth) {
      LPK_UNROLL
      for (int step = 0; step < kDepth; ++step) visit(step);
      return;
    }
    LPK_LOOP
    for (int step = 0; step < stage.count(); ++step) {
      int taken = 1;
      if (kTurns) read_shared<1>(&shared->taken[buffer][step], &taken);
      if (taken != 0) visit(step);
    }
  }

  LPK_HD void measure(const Shared* shared, int buffer, const Stage& stage) {
    LPK_UNROLL
    for (int n = 0; n < kOutputs; ++n) largest_[n] = stage.begins() ? INT32_MIN : largest_[n];
    each_step(shared, buffer, stage, [&](int step) {
      int left[kSide], right[kSide];
      read_both(shared->left_exponents[buffer][step], shared->right_exponents[buffer][step], left,
                right);
      LPK_UNROLL
      for (int n = 0; n < kOutputs; ++n) {
        const int exponent = left[n / kSide] + right[n % kSide];
        largest_[n] = exponent > largest_[n] ? exponent : largest_[n];
      }
    });
  }

  LPK_HD AlignedPlace<double> place_at(const Shared* shared, int n) const {
    return operand_place<double>(binade_of(shared->largest[n][thread_]), shared->sum[n][thread_],
                                 job_.acc);
  }

  // Finds where a block that was measured is cut, and cuts the running sums there.
  LPK_HD void place(Shared* shared) {
    LPK_UNROLL
    for (int n = 0; n < kOutputs; ++n) {
      int largest = largest_[n];
      // Where nothing counts, any place that float32 has will do.
      if (kSingle && largest >= kAbsentSum && largest < kSingleLeast) largest = kSingleLeast;
      shared->largest[n][thread_] = largest;
      grid_[n] = grid_of<Real>(place_at(shared, n).unit);
      total_[n] = cut_product(static_cast<Real>(shared->sum[n][thread_]), Real{1}, grid_[n]);
    }
  }

  template <bool kHoles>
  LPK_HD void add_block(const Shared* shared, int buffer, const Stage& stage) {
    each_step(shared, buffer, stage, [&](int step) {
      Real a[kSide], b[kSide];
      read_both(shared->left[buffer][step], shared->right[buffer][step], a, b);
      int left[kSide], right[kSide];
      if (kHoles)
        read_both(shared->left_exponents[buffer][step], shared->right_exponents[buffer][step], left,
                  right);
      LPK_UNROLL
      for (int n = 0; n < kOutputs; ++n) {
        const int i = n / kSide, j = n % kSide;
        const Real product = cut_product(a[i], b[j], grid_[n]);
        const bool absent = kHoles && left[i] + right[j] < kAbsentSum;
        total_[n] = add_rn(total_[n], absent ? Real{0} : product);
      }
    });
  }

  // Ends a block; a block without products leaves sums as they are.
  LPK_HD void round_sums(Shared* shared, int64_t key) const {
    LPK_UNROLL
    for (int n = 0; n < kOutputs; ++n) shared->total[n][thread_] = total_[n];
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) {
      if (shared->largest[n][thread_] < kAbsentSum) continue;
      const AlignedPlace<double> at = place_at(shared, n);
      const double units = shared->total[n][thread_] * at.scale;
      shared->sum[n][thread_] =
          static_cast<float>(rounded_block<double>(units, at, job_.acc, sum_threshold(n, key)));
    }
  }

  int taken_ = 0;
  // These are kept for each output between the stages of a block.
  int largest_[kOutputs];
  uint32_t grid_[kOutputs];
  Real total_[kOutputs];
};

}  // namespace lpk::cuda
