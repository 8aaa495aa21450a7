// Events of sums that add several products at once: aligned blocks and binary trees.
#pragma once

#include <memory>

#include "cpu/sums/ordered/aligned_sums.h"
#include "cpu/sums/ordered/pairwise_sums.h"
#include "event_sums.h"

namespace lpk {
namespace {

// A product is lost where alignment leaves nothing of it, or where its block leaves the sum as it
// was although the block's products are not zero in all. aligned_sums.h has the sum.
template <class V, bool kNearest, bool kRoundsProducts>
struct AlignedEvents : EventRules<V, false, kRoundsProducts, 1> {
  using Base = EventRules<V, false, kRoundsProducts, 1>;
  using D = typename V::D;
  using L = Lanes<D>;
  using Base::acc, Base::Base, Base::kVectors, Base::s;
  D terms[kMaxBlock];

  // One vector of products from .. to, a block whose first position is `from`.
  void block(int64_t row, int v, int64_t from, int64_t to) {
    float* const inner = s.inner[row] + v * V::kWidth;
    const int shift = v * V::kWidth;
    const D before = load_floats<V>(inner);
    uint32_t over = 0;
    D largest = finite_magnitude(before);
    auto signs = L::bits(before);
    for (int64_t k = from; k < to; ++k) {
      uint32_t out;
      const int64_t at = k - s.piece.from;
      const D p = this->product(this->left(row, at), this->right(v, at), 0, v, k, out);
      over |= out;
      signs |= L::bits(p);
      largest = L::max(finite_magnitude(p), largest);
      terms[k - from] = p;
    }
    const AlignedPlace<D> place(largest, acc.aligned_bits);
    D products = L::all(-0.0);  // adds nothing, not even a sign
    for (int64_t k = from; k < to; ++k) products += place.cut(terms[k - from]);
    const D exact = place.sum_of(place.cut(before) + products, signs, acc.rounding);
    const D threshold = this->sum_threshold(0, v, from);
    over |= this->sum_range.template left_by<V>(exact, threshold);
    const D after = round_to<D>(exact, acc.fmt, acc.rounding, threshold);
    const uint32_t stays = equal_lanes<V>(after, before) & nonzero_lanes<V>(products);
    for (int64_t k = from; k < to; ++k) {
      const D p = terms[k - from];
      const uint32_t counts = nonzero_lanes<V>(p) & finite_lanes<V>(p) & finite_lanes<V>(before);
      const uint32_t gone = equal_lanes<V>(place.cut(p), D{});
      const int64_t i = row * kEventDepth + k - s.piece.from;
      s.piece.added[i] |= counts << shift;
      s.piece.lost[i] |= (counts & (gone | stays)) << shift;
      s.piece.over[i] |= over << shift;
    }
    store_floats<V>(inner, after);
  }
  LPK_HD static D finite_magnitude(D x) {
    const D size = magnitude<D>(x);
    return size < HUGE_VAL ? size : D{};
  }

  void span(int64_t row, int64_t from, int64_t to) {
    const int64_t start = acc.chunk > 0 ? from / acc.chunk * acc.chunk : 0;
    for (int64_t k = from; k < to;) {
      const int64_t stop = std::min(k + acc.block - (k - start) % acc.block, to);
      for (int64_t i = k; i < stop; ++i) put_step(s.piece, row, i - s.piece.from, 0, 0, 0);
      for (int v = 0; v < kVectors; ++v) block(row, v, k, stop);
      for (int64_t i = k; i < stop; ++i) {
        const int64_t at = row * kEventDepth + i - s.piece.from;
        put_step(s.piece, row, i - s.piece.from, s.piece.added[at], s.piece.lost[at],
                 s.piece.over[at]);
      }
      k = stop;
    }
  }
  void close(int64_t) {}
};

// An addend of a node is lost where the node would be the same without it. With the addend, all
// products below it are lost that were not lost before. pairwise_sums.h has the sum.
template <class V, bool kNearest, bool kRoundsProducts>
struct PairwiseEvents : EventRules<V, false, kRoundsProducts, 1> {
  using Base = EventRules<V, false, kRoundsProducts, 1>;
  using D = typename V::D;
  using L = Lanes<D>;
  using Base::acc, Base::Base, Base::kVectors, Base::s;
  static constexpr int kLevels = 63;

  // The sum of some positions, and how many products are left in it.
  struct Node {
    D value[kVectors], left[kVectors];
  };
  struct Tree {
    uint64_t levels = 0;
    int64_t count = 0;
    Node waiting[kLevels];
  };
  std::unique_ptr<Tree[]> trees{new Tree[kEventRows]};
  uint32_t over = 0;  // of the row at hand

  D add_products(D p, D q, int v, int64_t key, uint32_t& out) {
    const D threshold = this->sum_threshold(0, v, key);
    out |= this->sum_range.template left_by<V>(odd_sum<D>(p, q), threshold);
    return rounded_sum(p, q, threshold);
  }
  D rounded_sum(D p, D q, D threshold) const {
    return add_products_rounded<D>(p, q, acc.fmt, acc.rounding, threshold);
  }

  // node <- left + node; leaves are products, which are no values of the format yet.
  void join(const Node& left, Node& node, bool leaves, int64_t key) {
    for (int v = 0; v < kVectors; ++v) {
      const D x = left.value[v], y = node.value[v];
      uint32_t out = 0;
      const D sum = add_products(x, y, v, key, out);
      const D threshold = this->sum_threshold(0, v, key);
      const D x_alone = leaves ? rounded_sum(D{}, x, threshold) : x;
      const D y_alone = leaves ? rounded_sum(D{}, y, threshold) : y;
      const auto x_finite = is_finite(x), y_finite = is_finite(y);
      const auto finite = x_finite & y_finite;
      const D lost_left = (finite & (x != 0.0) & (sum == y_alone)) ? left.left[v] : D{};
      const D lost_right = (finite & (y != 0.0) & (sum == x_alone)) ? node.left[v] : D{};
      s.piece.swamped += total_of(lost_left + lost_right, v);
      node.value[v] = sum;
      node.left[v] = (left.left[v] - lost_left) + (node.left[v] - lost_right);
      over |= out << (v * V::kWidth);
    }
  }
  // A product without a neighbour.
  void round_alone(Node& node, int64_t key) {
    for (int v = 0; v < kVectors; ++v) {
      const D p = node.value[v];
      uint32_t out = 0;
      const D sum = this->add(D{}, p, 0, v, key, out);
      const D lost = ((sum == 0.0) & is_finite(p)) ? node.left[v] : D{};
      s.piece.swamped += total_of(lost, v);
      node.value[v] = sum;
      node.left[v] -= lost;
      over |= out << (v * V::kWidth);
    }
  }
  LPK_HD static auto is_finite(D x) { return (x - x) == 0.0; }
  int64_t total_of(D counts, int v) const {
    double each[V::kWidth];
    store(each, counts);
    int64_t total = 0;
    for (int l = 0; l < V::kWidth; ++l) {
      if ((s.piece.lanes >> (v * V::kWidth + l) & 1) != 0) total += static_cast<int64_t>(each[l]);
    }
    return total;
  }

  void push(int64_t row, int64_t k) {
    const int64_t at = k - s.piece.from;
    const int64_t start = acc.chunk > 0 ? k / acc.chunk * acc.chunk : 0;
    Tree& tree = trees[row];
    Node node;
    uint32_t added = 0;
    over = 0;
    for (int v = 0; v < kVectors; ++v) {
      uint32_t out;
      const D p = this->product(this->left(row, at), this->right(v, at), 0, v, k, out);
      const auto counts = (p != 0.0) & is_finite(p);
      node.value[v] = p;
      node.left[v] = counts ? L::all(1.0) : D{};
      added |= lane_bits<V>(counts) << (v * V::kWidth);
      over |= out << (v * V::kWidth);
    }
    int level = 0;
    for (; (tree.levels >> level & 1) != 0; ++level) {
      // The key of a node is where its right half begins.
      join(tree.waiting[level], node, level == 0, start + (tree.count >> level << level));
      tree.levels &= ~(uint64_t{1} << level);
    }
    tree.waiting[level] = node;
    tree.levels |= uint64_t{1} << level;
    ++tree.count;
    put_step(s.piece, row, at, added, 0, over);
  }

  void span(int64_t row, int64_t from, int64_t to) {
    for (int64_t k = from; k < to; ++k) push(row, k);
    if (to == s.chunk_end(from)) collect(row, to);
  }
  // Joins the nodes that wait at the end of a sum, from the right.
  void collect(int64_t row, int64_t end) {
    Tree& tree = trees[row];
    const int64_t start = end - tree.count;
    Node node{};
    bool any = false;
    over = 0;
    for (int level = 0; tree.levels != 0; ++level) {
      if ((tree.levels >> level & 1) == 0) continue;
      tree.levels &= ~(uint64_t{1} << level);
      const int64_t key = start + (tree.count >> level << level);
      if (any) {
        join(tree.waiting[level], node, false, key);
      } else {
        node = tree.waiting[level];
        any = true;
        if (level == 0) round_alone(node, key);
      }
    }
    tree.count = 0;
    for (int v = 0; v < kVectors; ++v) store_floats<V>(s.inner[row] + v * V::kWidth, node.value[v]);
    const int64_t last = row * kEventDepth + end - 1 - s.piece.from;
    s.piece.over[last] |= static_cast<LaneBits>(over & s.piece.lanes);
  }
  void close(int64_t) {}
};

}  // namespace
}  // namespace lpk
