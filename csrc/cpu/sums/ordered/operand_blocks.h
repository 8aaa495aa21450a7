// The blocks of a tile that are aligned by their operands, in the order of the sums.
#pragma once

#include <cstdint>
#include <vector>

#include "common/orders.h"
#include "cpu/sums/exact/chunks.h"

namespace lpk {
namespace {

// Steps order[first] .. order[end - 1] of the tile.
struct OperandBlock {
  int64_t first, end;
  int64_t key;     // the position of its draw
  int64_t closes;  // the chunk that ends behind it, or -1
};

class OperandBlocks {
 public:
  std::vector<int64_t> order;
  std::vector<OperandBlock> all;

  // Lists the blocks of the tile, which the driver has ended where a run of interleaved blocks
  // ends. A chunk without products is a block without steps.
  void list(const Tile& t, const Accumulator& acc) {
    order.clear();
    all.clear();
    for_each_span(t, acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
      for (int64_t k = from; k < to;) k = add_run(t, acc, k, to);
      if (closed < 0) return;
      if (from == to) add(0, -1);
      all.back().closes = closed;
    });
  }

 private:
  // The run that holds step k; returns the first step behind it.
  int64_t add_run(const Tile& t, const Accumulator& acc, int64_t k, int64_t to) {
    const int64_t at = t.position_of(k);
    const int64_t start = acc.chunk > 0 ? at / acc.chunk * acc.chunk : 0;
    const int64_t first = at - (at - start) % acc.positions_together();
    const int64_t stop = std::min(first_from(t, k, first + acc.positions_together()), to);
    const int64_t turns = std::min(acc.interleaved, (t.position_of(stop - 1) - first) / 2 + 1);
    for (int64_t turn = 0; turn < turns; ++turn) {
      const int64_t before = static_cast<int64_t>(order.size());
      for (int64_t i = k; i < stop; ++i) {
        if (turn_of(t.position_of(i) - first, acc) == turn) order.push_back(i);
      }
      if (before < static_cast<int64_t>(order.size())) add(first + first_of_turn(turn), before);
    }
    return stop;
  }
  // With the steps from order[before] on; none where that is negative.
  void add(int64_t key, int64_t before) {
    const auto end = static_cast<int64_t>(order.size());
    all.push_back({before < 0 ? end : before, end, key, -1});
  }
};

}  // namespace
}  // namespace lpk
