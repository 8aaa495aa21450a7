// Sums as binary trees over the positions of k.
#pragma once

#include "ordered_sums.h"

namespace lpk {
namespace {

// A binary counter of nodes: `waiting[l]` covers 2^(l + 1) positions and is the left half of the
// node above, in the lanes `node_lanes[l]`. Bit l of `levels` says that there are any.
template <class V>
struct PairwiseSums : OrderedSums<V, 1> {
  using Base = OrderedSums<V, 1>;
  using D = typename V::D;
  using Base::Base, Base::kVectors, Base::t, Base::acc;
  using Node = D[kVectors];
  static constexpr int kLevels = 63;
  static constexpr int kFullLog = 3;
  static constexpr int64_t kFull = 1 << kFullLog;

  uint64_t levels = 0;
  uint16_t node_lanes[kLevels];
  Node waiting[kLevels];

  __attribute__((noinline)) D add_products_in_any_way(D p, D q, int v, int64_t key) {
    return add_products_rounded<D>(p, q, acc.fmt, acc.rounding, this->draws.of_sum(0, v, key));
  }

  LPK_HD D add_products(D p, D q, int v, int64_t key) {
    if (this->nearest) return this->add(p, q, 0, v, key);
    return add_products_in_any_way(p, q, v, key);
  }

  // The node of 2^kLog positions from k on, all present: independent sums, which hide the latency
  // of each other.
  template <int kLog>
  LPK_HD void full_node(int64_t k, Node& node) {
    constexpr int64_t kHalf = int64_t{1} << (kLog - 1);
    const int64_t key = t.position_of(k) + kHalf;
    if constexpr (kLog == 1) {
      for (int v = 0; v < kVectors; ++v)
        node[v] = add_products(this->product(0, v, k), this->product(0, v, k + 1), v, key);
    } else {
      Node right;
      full_node<kLog - 1>(k, node);
      full_node<kLog - 1>(k + kHalf, right);
      for (int v = 0; v < kVectors; ++v) node[v] = this->add(node[v], right[v], 0, v, key);
    }
  }
  // Whether the products from k on fill such a node.
  bool fills_node(int64_t k, int64_t to, int64_t start) const {
    const int64_t at = t.position_of(k);
    if (((at - start) & (kFull - 1)) != 0 || k + kFull > to) return false;
    if (t.position_of(k + kFull - 1) != at + kFull - 1) return false;
    if (t.absent == nullptr && t.lane_absent == nullptr) return true;
    uint32_t everywhere = kAllLanes;
    for (int64_t i = 0; i < kFull; ++i) everywhere &= this->present(0, k + i);
    return everywhere == kAllLanes;
  }

  // The node of the pair of positions that product k belongs to; its lanes. Moves k on.
  uint32_t pair_node(int64_t& k, int64_t to, int64_t start, Node& node) {
    const int64_t at = t.position_of(k) - start, key = start + (at | 1);
    const bool left = (at & 1) == 0;
    const int64_t last = left && k + 1 < to && t.position_of(k + 1) == key ? k + 1 : k;
    const uint32_t first = left ? this->present(0, k) : 0;
    const uint32_t second = last > k || !left ? this->present(0, last) : 0;
    const uint32_t both = first & second;
    for (int v = 0; v < kVectors && (first | second) != 0; ++v) {
      const D p = this->product(0, v, k), q = this->product(0, v, last);
      if (both != 0) node[v] = add_products(p, q, v, key);
      if (both == kAllLanes) continue;
      const D alone = this->add(D{}, this->where(first, v, p, q), 0, v, key);
      node[v] = both == 0 ? alone : this->where(both, v, node[v], alone);
    }
    k = last + 1;
    return first | second;
  }

  // node <- the node that waits left of it + node, or whichever of the two is there.
  uint32_t join(int level, int64_t key, uint32_t lanes, Node& node) {
    if ((levels >> level & 1) == 0) return lanes;
    levels &= ~(uint64_t{1} << level);
    const uint32_t both = node_lanes[level] & lanes;
    for (int v = 0; v < kVectors; ++v) {
      const D left = waiting[level][v];
      const D one = this->where(node_lanes[level], v, left, node[v]);
      node[v] = both == 0 ? one : this->where(both, v, this->add(left, node[v], 0, v, key), one);
    }
    return node_lanes[level] | lanes;
  }

  // Node `index` of a level, which covers 2^(level + 1) positions each, and on upwards.
  void push(int level, int64_t index, int64_t start, uint32_t lanes, Node& node) {
    // The key of a node is where its right half begins.
    for (; index & 1; index >>= 1, ++level)
      lanes = join(level, start + (index << (level + 1)), lanes, node);
    if (lanes == 0) return;
    for (int v = 0; v < kVectors; ++v) waiting[level][v] = node[v];
    node_lanes[level] = static_cast<uint16_t>(lanes);
    levels |= uint64_t{1} << level;
  }

  void add_span(int64_t from, int64_t to) {
    const int64_t start = this->sum_start(t.position_of(from));
    const int64_t end = this->sum_end(start);
    for (int64_t k = from; k < to;) {
      Node node;
      int64_t next = (t.position_of(k) - start) / 2 + 1;
      if (fills_node(k, to, start)) {
        full_node<kFullLog>(k, node);
        push(kFullLog - 1, (next - 1) >> (kFullLog - 1), start, kAllLanes, node);
        next += kFull / 2 - 1;
        k += kFull;
      } else {
        const uint32_t lanes = pair_node(k, to, start, node);
        push(0, next - 1, start, lanes, node);
      }
      // Pairs left out before the next product, or before the end of the sum.
      const int64_t following = t.position_of(k);
      const int64_t pairs = (following < end ? following - start : end - start + 1) / 2;
      for (; next < pairs && levels != 0; ++next) push(0, next, start, 0, node);
    }
  }

  // Joins the nodes that wait at the end of a sum, from the right.
  void collect(int64_t chunk, Node& node) {
    const int64_t start = chunk * acc.chunk;
    const int64_t pairs = (this->sum_end(start) - start + 1) / 2;
    uint32_t lanes = 0;
    for (int v = 0; v < kVectors; ++v) node[v] = D{};
    for (int level = 0; levels != 0; ++level)
      lanes = join(level, start + (pairs >> level << level) * 2, lanes, node);
    for (int v = 0; v < kVectors; ++v) node[v] = this->where(lanes, v, node[v], D{});
  }

  LPK_HD int64_t plane_at(int level) const {
    return level * t.plane + this->row * t.stride + this->lane;
  }

  void run() {
    for (int level = 0; level < t.plane_count; ++level) {
      node_lanes[level] = t.node_lanes[plane_at(level) / kPanel];
      if (node_lanes[level] == 0) continue;
      levels |= uint64_t{1} << level;
      for (int v = 0; v < kVectors; ++v)
        waiting[level][v] = load_floats<V>(t.planes + plane_at(level) + v * V::kWidth);
    }
    const auto span = [&](int64_t from, int64_t to) { add_span(from, to); };
    const auto close = [&](int64_t chunk) {
      D sum[1][kVectors];
      collect(chunk, sum[0]);
      this->finish(sum, chunk);
    };
    this->for_each_sum(span, close);
    for (int level = 0; level < t.plane_count; ++level) {
      const bool waits = (levels >> level & 1) != 0;
      t.node_lanes[plane_at(level) / kPanel] = waits ? node_lanes[level] : 0;
      for (int v = 0; v < kVectors && waits; ++v)
        store_floats<V>(t.planes + plane_at(level) + v * V::kWidth, waiting[level][v]);
    }
  }
};

}  // namespace
}  // namespace lpk
