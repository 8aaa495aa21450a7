#include "block_run.h"

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "aligned.h"
#include "cpu/elementwise/quantize.h"

namespace lpk {
namespace {

// A packed block of A, and the product and rows that it belongs to: work blocks that a thread takes
// one after the other often share it.
struct PackedBlock {
  AlignedFloats values = AlignedFloats(kMaxRows * kMaxDepth + kPanel);
  OperandRange range;
  // Whether this is the block that is held already. Afterwards it is.
  bool take(uint64_t call, const Operands* of, Interval rows, Interval k) {
    const auto key = std::make_tuple(call, of, rows.first, rows.count, k.first, k.count);
    return std::exchange(key_, key) == key;
  }

 private:
  std::tuple<uint64_t, const Operands*, int64_t, int64_t, int64_t, int64_t> key_;
};

// Planes of state beside the running sum: Kahan's correction, or the waiting nodes of a tree, one a
// level.
int64_t plane_count(const Accumulator& acc, int64_t length) {
  if (acc.order == Order::kCompensated) return 1;
  if (acc.order != Order::kPairwise) return 0;
  const int64_t positions = acc.chunk > 0 ? std::min(acc.chunk, length) : length;
  int64_t levels = 0;
  for (int64_t nodes = (positions + 1) / 2; nodes > 0; nodes /= 2) ++levels;
  return levels;
}

}  // namespace

struct BlockScratch {
  PackedBlock a;
  std::vector<uint8_t> absent = std::vector<uint8_t>(kMaxSpread);
  std::vector<uint16_t> lane_absent = std::vector<uint16_t>(kMaxDepth * kLanes / kPanel);
  AlignedFloats b = AlignedFloats(kMaxDepth * kLanes);
  PackedFacts b_facts;
  AlignedFloats inner = AlignedFloats(kUnitRows * kLanes);
  AlignedFloats outer = AlignedFloats(kUnitRows * kLanes);
  std::vector<float> planes;  // empty unless an order needs them, as the next
  std::vector<uint16_t> node_lanes;
  std::vector<float> initial;
  uint64_t row_id[kSpreadRows];
  uint64_t lane_id[kLanes];

  // Makes room for `together` positions in one block of k, where these are more than usual: a run
  // of interleaved blocks has no bound.
  void fit(int64_t together) {
    if (together <= kMaxDepth) return;
    grow(together * kRowGroup + kPanel, a.values);
    grow(together * kRowGroup, absent);
    grow(together * kLanes / kPanel, lane_absent);
    grow(together * kLanes, b);
  }

  static BlockScratch& of_thread() {
    thread_local BlockScratch scratch;
    return scratch;
  }
};

void BlockMarks::mark() {
  const Product& p = *block_.product;
  if (!rows_marked_) {
    uint8_t* to = scratch_->absent.data();
    rows = p.operands->mark_rows({block_.rows.first + rows_.first, rows_.count}, k_, to) ? to
                                                                                         : nullptr;
    rows_marked_ = true;
  }
  if (!lanes_marked_) {
    uint16_t* to = scratch_->lane_absent.data();
    lanes = p.operands->mark_lanes(k_, block_.lanes, to) ? to : nullptr;
    lanes_marked_ = true;
  }
}

BlockRun::BlockRun(const WorkBlock& block, const Kernels& kernel, const Arithmetic& arithmetic,
                   uint64_t seed, uint64_t call)
    : acc(accumulator_from(arithmetic.accumulator)),
      block_(block),
      product_(*block.product),
      kernels_(kernel),
      round_a_(kernel, product_.exchanged ? arithmetic.right : arithmetic.left),
      round_b_(kernel, product_.exchanged ? arithmetic.left : arithmetic.right),
      call_(call),
      scratch_(BlockScratch::of_thread()) {
  const Product& p = product_;
  scratch_.fit(std::min(acc.positions_together(), p.length));
  tile.rows = block.rows.count;
  tile.lanes = ceil_div(block.lanes.count, kPanel) * kPanel;
  tile.a = scratch_.a.values.data();
  tile.b = scratch_.b.data();
  tile.b_facts = &scratch_.b_facts;
  tile.inner = scratch_.inner.data();
  tile.outer = scratch_.outer.data();
  tile.stride = tile.lanes;
  tile.accumulator = arithmetic.accumulator;
  tile.length = p.position == nullptr ? p.length : p.position[p.length];
  tile.seed = seed;
  tile.row_id = scratch_.row_id;
  tile.lane_id = scratch_.lane_id;
  tile.lanes_are_rows = p.lanes_are_rows;
  tile.exchanged = p.exchanged;
  tile.plane = block.rows.count * tile.lanes;
  tile.plane_count = plane_count(acc, tile.length);
  scratch_.planes.resize(tile.plane_count * tile.plane);
  scratch_.node_lanes.resize(tile.plane_count * tile.plane / kPanel);
  tile.planes = scratch_.planes.data();
  tile.node_lanes = scratch_.node_lanes.data();
}

void BlockRun::clear_inner() const {
  std::fill_n(tile.inner, block_.rows.count * tile.lanes, 0.0f);
  std::fill(scratch_.planes.begin(), scratch_.planes.end(), 0.0f);
  std::fill(scratch_.node_lanes.begin(), scratch_.node_lanes.end(), 0);
}

void BlockRun::take_ids() {
  product_.operands->row_ids(block_.rows, scratch_.row_id);
  product_.operands->lane_ids(block_.lanes, scratch_.lane_id);
  std::fill(scratch_.lane_id + block_.lanes.count, scratch_.lane_id + tile.lanes, 0);
}

AddBlock BlockRun::addition(float* sums, const int64_t* accumulator) const {
  AddBlock job{};
  static_cast<TileDraws&>(job) = tile;
  job.sum = sums;
  job.stride = tile.stride;
  job.rows = block_.rows.count;
  job.lanes = block_.lanes.count;
  job.addend_row = tile.stride;
  job.addend_lane = 1;
  job.accumulator = accumulator;
  return job;
}

// The bias is one more addition in the outermost format.
void BlockRun::add_bias(float* sums, const int64_t* accumulator) const {
  const bool by_row = product_.row_bias != nullptr;
  AddBlock job = addition(sums, accumulator);
  job.addend =
      by_row ? product_.row_bias + block_.rows.first : product_.lane_bias + block_.lanes.first;
  job.addend_row = by_row ? 1 : 0;
  job.addend_lane = by_row ? 0 : 1;
  job.site = kSiteBias;
  kernels_.add(job);
}

// In every mode x equals its sum with the zero of its sign, exactly. Their draws come after the
// bias's draws.
void BlockRun::start(float* sums, const int64_t* accumulator) const {
  const Product& p = product_;
  std::vector<float>& addend = scratch_.initial;
  addend.assign(block_.rows.count * tile.stride, 0.0f);
  for (int64_t r = 0; r < block_.rows.count; ++r) {
    const float* from =
        p.initial + (block_.rows.first + r) * p.initial_row + block_.lanes.first * p.initial_lane;
    for (int64_t l = 0; l < block_.lanes.count; ++l) {
      const int64_t at = r * tile.stride + l;
      addend[at] = from[l * p.initial_lane];
      sums[at] = std::copysign(0.0f, addend[at]);
    }
  }
  AddBlock job = addition(sums, accumulator);
  job.addend = addend.data();
  job.site = kSiteBias;
  job.k = 1;
  kernels_.add(job);
}

// The addition of the bias and the output quantizer leave only canonical NaNs behind.
void BlockRun::store(float* sums, const int64_t* accumulator, const int64_t* quantizer) const {
  const Product& p = product_;
  const bool biased = p.row_bias != nullptr || p.lane_bias != nullptr;
  const int64_t count = block_.rows.count * tile.stride;
  if (biased) add_bias(sums, accumulator);
  if (number_format(accumulator + InAccumulator::kOuter).one_zero) make_zeros_positive(sums, count);
  if (quantizer != nullptr) {
    round_in_place(kernels_, quantizer, sums, count);
  } else if (!biased) {
    OperandRange range = range_of_zeros();
    kernels_.measure(sums, count, &range);
    const float nan = canonical_float(std::numeric_limits<double>::quiet_NaN());
    for (int64_t i = 0; !range.plain && i < count; ++i)
      sums[i] = sums[i] == sums[i] ? sums[i] : nan;
  }
  p.operands->store(block_.rows, block_.lanes, sums, tile.stride);
}

void BlockRun::pack_b(int64_t k) {
  const Product& p = product_;
  p.operands->pack_b({k, tile.depth}, block_.lanes, round_b_, scratch_.b.data());
  scratch_.b_facts.clear();
  scratch_.b_facts.ranged = p.operands->b_range(&scratch_.b_facts.range);
}

// Packs and measures A of some rows, unless it is there already.
void BlockRun::pack_a(int64_t row, int64_t k, Tile* rows) {
  const Product& p = product_;
  const Interval of_rows{block_.rows.first + row, rows->rows}, of_k{k, tile.depth};
  if (p.spread) return p.operands->spread_a(of_rows, of_k, round_a_, rows);
  PackedBlock* a = &scratch_.a;
  rows->a_range = &a->range;
  if (a->take(call_, p.operands, of_rows, of_k)) return;
  p.operands->pack_a(of_rows, of_k, round_a_, a->values.data());
  if (p.operands->a_range(&a->range)) return;
  a->range = range_of_zeros();
  kernels_.measure(a->values.data(), of_rows.count * of_k.count, &a->range);
}

}  // namespace lpk
