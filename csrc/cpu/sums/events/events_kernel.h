// The loop of events.h over pieces of k, for one instruction set.
#pragma once

#include <memory>

#include "cpu/sums/exact/add_kernel.h"
#include "event_steps.h"

namespace lpk {
namespace {

// `kGroup` rows at a time by Group, the rest one by one.
template <class V, class Group, int kGroup, class Single>
EventCounts run_events(const EventBlock& block) {
  const auto state = std::make_unique<EventState>(block);
  EventState& s = *state;
  const auto group = std::make_unique<Group>(s);
  std::unique_ptr<Single> single;
  if constexpr (kGroup > 1) single = std::make_unique<Single>(s);
  const auto run = [&](auto& sums, int64_t row, int64_t count) {
    sums.start(row);
    for_each_event_sum(
        s, [&](int64_t from, int64_t to) { sums.span(row, from, to); },
        [&](int64_t chunk) {
          for (int64_t r = row; r < row + count; ++r) close_event_chunk<V>(s, r, chunk);
        });
  };
  for (int64_t from = 0; from < s.args.k; from = s.to) {
    s.load(block, from, std::min(s.args.k, from + kEventDepth));
    int64_t row = 0;
    for (; row + kGroup <= block.rows; row += kGroup) run(*group, row, kGroup);
    if constexpr (kGroup > 1) {
      for (; row < block.rows; ++row) run(*single, row, 1);
    }
  }
  s.store_sums(block);
  for (const LaneBits over : s.overflowed) s.counts.overflowed += __builtin_popcount(over);
  return s.counts;
}

// Rows whose chains of additions hide each other's latency.
template <class V>
constexpr int kEventGroup = V::kWidth == 8   ? 4
                            : V::kWidth == 4 ? 2
                                             : 1;

template <class V, bool kNearest, bool kRoundsProducts>
EventCounts count_variant(const EventBlock& block) {
  constexpr int kRows = kEventGroup<V>;
  return run_events<V, SequentialEvents<V, kNearest, kRoundsProducts, kRows>, kRows,
                    SequentialEvents<V, kNearest, kRoundsProducts, 1>>(block);
}

template <class V>
EventCounts count_events(const EventBlock& block) {
  const Accumulator acc = accumulator_from(block.args->accumulator);
  if (plain_nearest(acc.fmt, acc.rounding)) {
    return acc.has_product ? count_variant<V, true, true>(block)
                           : count_variant<V, true, false>(block);
  }
  return acc.has_product ? count_variant<V, false, true>(block)
                         : count_variant<V, false, false>(block);
}

template <class V>
constexpr EventKernels event_kernels() {
  return {count_events<V>};
}

}  // namespace
}  // namespace lpk
