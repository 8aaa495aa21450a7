// Sums as binary trees over the positions of a sum.
//
// A tree is walked from the left as a binary counter counts. After n pairs of positions, a node of
// 2^l pairs waits at level l where bit l of n is set. The next pair joins the node at level 0,
// their sum joins the node at level 1, and so on. Nodes wait in global memory, as floats, which
// hold the values of accumulators; kAbsent is a node without products. A thread reads only what it
// wrote.
#pragma once

#include "ordered_tile.h"

namespace lpk::cuda {

// How many blocks work at a time, each with nodes of its own: several for each processor of any
// device.
constexpr int64_t kTreeBlocks = 1024;
// The most levels of trees over steps that leave positions out: these are trees of 2^41 positions.
constexpr int kMostLevels = 40;

// The levels at which nodes can wait: as many as the number of pairs has bits.
inline int tree_levels(const Sums& s, int64_t chunk) {
  const bool gaps = s.positions != nullptr;
  if (gaps && chunk == 0) return kMostLevels;
  const int64_t length = gaps || (chunk > 0 && chunk < s.k) ? chunk : s.k;
  int levels = 1;
  while (levels < kMostLevels && (length + 1) / 2 >> levels != 0) ++levels;
  return levels;
}

// How many nodes one level of a block has.
constexpr int64_t kTreeNodes = kOrderedSide * kOrderedSide * OrderedMap::kThreads;

// How many floats may wait in all.
inline int64_t tree_floats(const Sums& s, int64_t chunk) {
  const int64_t tiles = tile_count(s, OrderedMap::kLanes);
  return (tiles < kTreeBlocks ? tiles : kTreeBlocks) * tree_levels(s, chunk) * kTreeNodes;
}

template <bool kNearest>
class TreeTile : public OrderedTile<kNearest> {
  using Base = OrderedTile<kNearest>;
  using Base::job_;
  using Base::kOutputs;
  using Base::thread_;

 public:
  using Stage = Stages;
  using typename Base::Map;
  // Two blocks would leave a thread 128 registers, too few for trees that round in any way.
  static constexpr int kBlocks = kNearest ? 2 : 1;
  struct Shared : OrderedShared {
    // Both products of the pair that is not complete; `absent` stands where there is none.
    Kept<double> halves[2];
  };
  LPK_HD TreeTile(const Job& job, int64_t tile, int thread)
      : Base(job, tile, thread),
        waiting_(job.waiting + tile % kTreeBlocks * job.levels * kTreeNodes + thread) {}

  LPK_HD void begin(Shared* shared) const {
    this->begin_sums(shared);
    for (int n = 0; n < kOutputs; ++n) forget(shared, n);
  }

  LPK_HD void multiply(Shared* shared, int buffer, const Stages& stage) {
    const int count = stage.count();
    start_ = int64_t{stage.chunk()} * job_.acc.chunk;
    LPK_LOOP
    for (int step = 0; step < count; ++step) {
      const int64_t at = this->position(stage.first() + step);
      const int64_t pair = (at - start_) >> 1;
      const bool right = ((at - start_) & 1) != 0;
      // A left half without its right one is complete once another pair begins.
      LPK_LOOP
      for (int turn = 0; turn < 2; ++turn) {
        if (turn == 1) take(shared, buffer, step, at, right);
        const bool complete = turn == 0 ? half_ && pair != pair_ : right;
        if (turn == 1) pair_ = pair;
        if (complete) add_pair(shared);
      }
    }
  }

  LPK_HD void close(Shared* shared, int64_t chunk) {
    if (half_) add_pair(shared);
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) {
      const float sum = collapsed(n, bit_length(pairs_));
      shared->sum[n][thread_] = is_absent(sum) ? 0.0f : sum;
      this->close_sum(shared, n, chunk);
    }
    pairs_ = 0;
  }

 private:
  LPK_HD static bool is_absent(float node) { return word_of(node) == kAbsent; }
  LPK_HD static int bit_length(int64_t x) {
    int length = 0;
    for (; x != 0; x >>= 1) ++length;
    return length;
  }
  LPK_HD float* waiting(int level, int n) const {
    return waiting_ + level * kTreeNodes + n * Map::kThreads;
  }
  LPK_HD void forget(Shared* shared, int n) const {
    shared->halves[0][n][thread_] = shared->halves[1][n][thread_] = absent_double();
  }

  LPK_HD void take(Shared* shared, int buffer, int step, int64_t at, bool right) {
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n)
      shared->halves[right ? 1 : 0][n][thread_] = this->product(shared, buffer, step, n, at);
    half_ = true;
  }

  // Adds the node of the pair that waits, and all nodes that it completes.
  LPK_HD void add_pair(Shared* shared) {
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) {
      if (pairs_ < pair_) skip(n);
      float node = leaf(shared, n);
      int level = 0;
      LPK_LOOP
      for (int64_t index = pair_; (index & 1) != 0; index >>= 1) {
        node = joined(level, n, node, start_ + (index << (level + 1)));
        ++level;
      }
      *waiting(level, n) = node;
      forget(shared, n);
    }
    pairs_ = pair_ + 1;
    half_ = false;
  }

  // The key of a pair's draw is its second position.
  LPK_HD float leaf(const Shared* shared, int n) const {
    const double p = shared->halves[0][n][thread_];
    const double q = shared->halves[1][n][thread_];
    const int64_t key = start_ + 2 * pair_ + 1;
    if (absent(p) && absent(q)) return float_of(kAbsent);
    if (absent(p) || absent(q)) return canonical_float(this->add(0.0, absent(p) ? q : p, n, key));
    return canonical_float(this->add_products(p, q, n, key));
  }

  // The sum of the node that waits at a level and the node right of it, or that one of them which
  // there is. The key of a node is the position where its right half begins.
  LPK_HD float joined(int level, int n, float right, int64_t key) const {
    const float left = *waiting(level, n);
    if (is_absent(left)) return right;
    if (is_absent(right)) return left;
    return canonical_float(this->add(left, right, n, key));
  }

  // Joins the nodes that wait below a level, from the right.
  LPK_HD float collapsed(int n, int levels) const {
    float node = float_of(kAbsent);
    LPK_LOOP
    for (int level = 0; level < levels; ++level) {
      const int64_t before = pairs_ >> level;
      if ((before & 1) != 0) node = joined(level, n, node, start_ + (before << (level + 1)));
    }
    return node;
  }

  // Pairs pairs_ .. pair_ - 1 are absent. The nodes that wait below the highest bit in which pairs_
  // and pair_ differ become one node, which waits at this bit's level.
  LPK_HD void skip(int n) const {
    const int highest = bit_length(pairs_ ^ pair_) - 1;
    *waiting(highest, n) = collapsed(n, highest);
    LPK_LOOP
    for (int level = 0; level < highest; ++level) {
      if ((pair_ >> level & 1) != 0) *waiting(level, n) = float_of(kAbsent);
    }
  }

  float* waiting_;
  int64_t start_ = 0;  // first position of the sum
  int64_t pairs_ = 0;  // done
  int64_t pair_ = 0;   // of the half that was taken
  bool half_ = false;  // whether one waits
};

}  // namespace lpk::cuda
