// The loop of events.h over pieces of k, and the masked sums, for one instruction set.
#pragma once

#include <memory>

#include "cpu/sums/exact/add_kernel.h"
#include "event_steps.h"

namespace lpk {
namespace {

// `kGroup` rows at a time by Group, the rest one by one.
template <class V, class Group, int kGroup, class Single>
void run_events(const EventBlock& block) {
  const std::unique_ptr<EventPiece> piece(new EventPiece);  // Not cleared.
  const auto state = std::make_unique<EventState>(block, *piece);
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
  for (int64_t from = 0; from < s.args.k; from = piece->to) {
    s.load(from, std::min(s.args.k, from + kEventDepth));
    int64_t row = 0;
    for (; row + kGroup <= block.rows; row += kGroup) run(*group, row, kGroup);
    if constexpr (kGroup > 1) {
      for (; row < block.rows; ++row) run(*single, row, 1);
    }
    if (s.acc.chunk > 0) {
      const int64_t whole = piece->to == s.args.k ? s.acc.chunk - 1 : 0;
      piece->chunk_count = (piece->to + whole) / s.acc.chunk - piece->first_chunk;
    }
    block.sink->take(*piece);
  }
  if (s.args.c != nullptr) s.store_sums(block);
}

// Rows whose chains of additions hide each other's latency.
template <class V>
constexpr int kEventGroup = V::kWidth == 8   ? 4
                            : V::kWidth == 4 ? 2
                                             : 1;

template <class V, bool kNearest, bool kRoundsProducts>
void count_variant(const EventBlock& block) {
  constexpr int kRows = kEventGroup<V>;
  run_events<V, SequentialEvents<V, kNearest, kRoundsProducts, kRows>, kRows,
             SequentialEvents<V, kNearest, kRoundsProducts, 1>>(block);
}

template <class V>
void count_events(const EventBlock& block) {
  const Accumulator acc = accumulator_from(block.args->accumulator);
  if (plain_nearest(acc.fmt, acc.rounding)) {
    acc.has_product ? count_variant<V, true, true>(block) : count_variant<V, true, false>(block);
  } else {
    acc.has_product ? count_variant<V, false, true>(block) : count_variant<V, false, false>(block);
  }
}

// As many floats as a register holds, and so many products at a time as there are registers for.
constexpr int kMaskWidth = std::max(4, Isa::kWords);
constexpr int64_t kMaskTile = kMaskWidth / 2;
constexpr int kMaskParts = kPanel / kMaskWidth;
typedef float MaskedLanes __attribute__((vector_size(kMaskWidth * 4)));
typedef int32_t MaskedBits __attribute__((vector_size(kMaskWidth * 4)));

// x where the bit of its lane is set, else 0; the first lane is `first`.
LPK_HD MaskedLanes passing(LaneBits pass, int first, MaskedLanes x) {
  MaskedBits lane;
  for (int l = 0; l < kMaskWidth; ++l) lane[l] = 1 << l;
  const MaskedBits kept = (lane & (int32_t{pass} >> first)) != 0;
  return (MaskedLanes)((MaskedBits)x & kept);
}

LPK_HD float sum_of_lanes(const MaskedLanes (&x)[kMaskParts]) {
  MaskedLanes all = x[0];
  for (int i = 1; i < kMaskParts; ++i) all += x[i];
  float total = 0.0f;
  for (int l = 0; l < kMaskWidth; ++l) total += all[l];
  return total;
}

template <int64_t kTile>
LPK_HD void masked_row_tile(const MaskedRow& of, int64_t k) {
  MaskedLanes sums[kTile][kMaskParts] = {};
  for (int64_t p = 0; p < of.panels; ++p) {
    for (int part = 0; part < kMaskParts; ++part) {
      const int first = part * kMaskWidth;
      const MaskedLanes g = load<MaskedLanes>(of.g + p * kPanel + first);
      for (int64_t i = 0; i < kTile; ++i) {
        const int64_t at = p * of.k + k + i;
        const MaskedLanes b = load<MaskedLanes>(of.b + at * kPanel + first);
        sums[i][part] += passing(of.pass[at], first, g * b);
      }
    }
  }
  for (int64_t i = 0; i < kTile; ++i) of.left[k + i] = sum_of_lanes(sums[i]);
}

void masked_row(const MaskedRow& of) {
  int64_t k = 0;
  for (; k + kMaskTile <= of.k; k += kMaskTile) masked_row_tile<kMaskTile>(of, k);
  for (; k < of.k; ++k) masked_row_tile<1>(of, k);
}

template <int64_t kTile>
LPK_HD void masked_panel_tile(const MaskedPanel& of, int64_t k, int first) {
  MaskedLanes sums[kTile];
  float* const right = of.right + k * kPanel + first;
  for (int64_t i = 0; i < kTile; ++i) sums[i] = load<MaskedLanes>(right + i * kPanel);
  for (int64_t r = 0; r < of.rows; ++r) {
    const MaskedLanes g = load<MaskedLanes>(of.g + r * of.g_row + first);
    for (int64_t i = 0; i < kTile; ++i) {
      const LaneBits pass = of.pass[r * of.pass_row + k + i];
      sums[i] += passing(pass, first, g * of.a[r * of.a_row + k + i]);
    }
  }
  for (int64_t i = 0; i < kTile; ++i) store(right + i * kPanel, sums[i]);
}

void masked_panel(const MaskedPanel& of) {
  for (int first = 0; first < kPanel; first += kMaskWidth) {
    int64_t k = 0;
    for (; k + kMaskTile <= of.k; k += kMaskTile) masked_panel_tile<kMaskTile>(of, k, first);
    for (; k < of.k; ++k) masked_panel_tile<1>(of, k, first);
  }
}

template <class V>
constexpr EventKernels event_kernels() {
  return {count_events<V>, masked_row, masked_panel};
}

}  // namespace
}  // namespace lpk
