// A work block is a block of outputs. It keeps its running sums while all of K passes by in packed
// blocks.
//
//   for each block of rows x lanes (over threads)
//     for each block of k: pack B; for some rows at a time, pack A and run the kernel
//     add the bias, store float32
#include "gemm.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "aligned.h"
#include "common/accumulate.h"
#include "cpu/elementwise/quantize.h"
#include "parallel.h"
#include "work_blocks.h"

namespace lpk {
namespace {

// A packed block of A, and the product and rows that it belongs to: work blocks that a thread takes
// one after the other often share it.
struct PackedBlock {
  AlignedFloats values = AlignedFloats(kMaxRows * kMaxDepth + kPanel);
  OperandRange range;
  uint64_t call = 0;
  const Operands* operands = nullptr;
  int64_t row = 0, rows = 0, k = 0, depth = 0;

  // Whether this is the block that is held already. Afterwards it is.
  bool take(uint64_t c, const Operands* of, int64_t r, int64_t count, int64_t from, int64_t deep) {
    const bool same =
        c == call && of == operands && r == row && count == rows && from == k && deep == depth;
    call = c;
    operands = of;
    row = r;
    rows = count;
    k = from;
    depth = deep;
    return same;
  }
};

struct Scratch {
  PackedBlock a;
  std::vector<uint8_t> absent = std::vector<uint8_t>(kMaxSpread);
  std::vector<uint16_t> lane_absent = std::vector<uint16_t>(kMaxDepth * kLanes / kPanel);
  AlignedFloats b = AlignedFloats(kMaxDepth * kLanes);
  PackedFacts b_facts;
  AlignedFloats inner = AlignedFloats(kUnitRows * kLanes);
  AlignedFloats outer = AlignedFloats(kUnitRows * kLanes);
  std::vector<float> planes;  // empty unless an order needs them, as the next
  std::vector<uint16_t> held;
  std::vector<float> initial;
  uint64_t row_id[kSpreadRows];
  uint64_t lane_id[kLanes];

  // Makes room for `together` positions in one block of k, where these are more than usual: a run
  // of interleaved blocks has no bound.
  void fit(int64_t together) {
    const auto grow = [](auto* to, int64_t count) {
      if (static_cast<int64_t>(to->size()) < count) to->resize(count);
    };
    if (together <= kMaxDepth) return;
    grow(&a.values, together * kRowGroup + kPanel);
    grow(&absent, together * kRowGroup);
    grow(&lane_absent, together * kLanes / kPanel);
    grow(&b, together * kLanes);
  }
};

// The bias is one more addition in the outermost format.
void add_bias(const WorkBlock& block, const Tile& tile, const Kernels& kernel, float* state) {
  const Product& p = *block.product;
  const bool by_row = p.row_bias != nullptr;
  AddBlock job{};
  job.sum = state;
  job.stride = tile.stride;
  job.rows = block.rows;
  job.lanes = block.lanes;
  job.addend = by_row ? p.row_bias + block.row : p.lane_bias + block.lane;
  job.addend_row = by_row ? 1 : 0;
  job.addend_lane = by_row ? 0 : 1;
  job.accumulator = tile.accumulator;
  job.seed = tile.seed;
  job.site = kSiteBias;
  job.row_id = tile.row_id;
  job.lane_id = tile.lane_id;
  job.lanes_are_rows = tile.lanes_are_rows;
  kernel.add(job);
}

// The state starts from the product's initial values, rounded. In every mode x equals its sum with
// the zero of its sign, exactly. Their draws come after the bias's draws.
void start_sums(const WorkBlock& block, const Tile& tile, const Kernels& kernel, bool chunked,
                std::vector<float>* addend) {
  const Product& p = *block.product;
  float* state = chunked ? tile.outer : tile.inner;
  addend->assign(block.rows * tile.stride, 0.0f);
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* from = p.initial + (block.row + r) * p.initial_row + block.lane * p.initial_lane;
    for (int64_t l = 0; l < block.lanes; ++l) {
      const int64_t at = r * tile.stride + l;
      (*addend)[at] = from[l * p.initial_lane];
      state[at] = std::copysign(0.0f, (*addend)[at]);
    }
  }
  AddBlock job{};
  job.sum = state;
  job.stride = tile.stride;
  job.rows = block.rows;
  job.lanes = block.lanes;
  job.addend = addend->data();
  job.addend_row = tile.stride;
  job.addend_lane = 1;
  job.accumulator = tile.accumulator;
  job.seed = tile.seed;
  job.site = kSiteBias;
  job.k = 1;
  job.row_id = tile.row_id;
  job.lane_id = tile.lane_id;
  job.lanes_are_rows = tile.lanes_are_rows;
  kernel.add(job);
}

// Adds the bias, applies the output quantizer and makes NaNs canonical; each of the first two
// leaves only canonical NaNs behind.
void store_block(const WorkBlock& block, const Tile& tile, const Kernels& kernel,
                 const int64_t* quantizer, bool chunked) {
  const Product& p = *block.product;
  float* state = chunked ? tile.outer : tile.inner;
  const bool biased = p.row_bias != nullptr || p.lane_bias != nullptr;
  const int64_t count = block.rows * tile.stride;
  if (biased) add_bias(block, tile, kernel, state);
  if (quantizer != nullptr) {
    round_in_place(kernel, quantizer, state, count);
  } else if (!biased) {
    OperandRange range = range_of_zeros();
    kernel.measure(state, count, &range);
    const float nan = canonical_float(std::numeric_limits<double>::quiet_NaN());
    for (int64_t i = 0; !range.plain && i < count; ++i)
      state[i] = state[i] == state[i] ? state[i] : nan;
  }
  p.operands->store(block.row, block.rows, block.lane, block.lanes, state, tile.stride);
}

bool draws(const Accumulator& acc) {
  return acc.rounding == Rounding::kStochastic || acc.outer_rounding == Rounding::kStochastic ||
         (acc.has_product && acc.product_rounding == Rounding::kStochastic);
}

// The marks of one block of k: of all its lanes, and of one group of its rows after the other.
class BlockMarks final : public Marks {
 public:
  BlockMarks(const WorkBlock& block, int64_t k, int64_t depth, Scratch* scratch)
      : block_(block), k_(k), depth_(depth), scratch_(scratch) {}
  void take(int64_t row, int64_t count) {
    row_ = row;
    count_ = count;
    rows = nullptr;
    rows_marked_ = false;
  }
  void mark() override {
    const Product& p = *block_.product;
    if (!rows_marked_) {
      if (p.marked != nullptr) *p.marked = true;
      uint8_t* to = scratch_->absent.data();
      rows = p.operands->mark_rows(block_.row + row_, count_, k_, depth_, to) ? to : nullptr;
      rows_marked_ = true;
    }
    if (!lanes_marked_) {
      uint16_t* to = scratch_->lane_absent.data();
      lanes = p.operands->mark_lanes(k_, depth_, block_.lane, block_.lanes, to) ? to : nullptr;
      lanes_marked_ = true;
    }
  }

 private:
  const WorkBlock& block_;
  int64_t k_, depth_;
  Scratch* scratch_;
  int64_t row_ = 0, count_ = 0;
  bool rows_marked_ = false, lanes_marked_ = false;
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

// Where the block of k that begins at product k ends: after at most `depth` products, and not
// between positions that a kernel must see together.
int64_t block_end(const Product& p, const Accumulator& acc, int64_t k, int64_t depth) {
  int64_t end = std::min(k + depth, p.length);
  const int64_t together = acc.positions_together();
  if (together == 1 || end == p.length) return end;
  const int64_t sum = acc.chunk > 0 ? acc.chunk : std::numeric_limits<int64_t>::max();
  if (p.position == nullptr) return end - end % sum % together;
  const int64_t next = p.position[end];
  const int64_t first = next - next % sum % together;
  while (p.position[end - 1] >= first) --end;
  return end;
}

// Packs and measures A of a tile, unless it is there already.
void pack_rows(const Product& p, int64_t row, const Tile& t, const Kernels& kernel,
               const Rounder& round, uint64_t call, PackedBlock* a) {
  if (a->take(call, p.operands, row, t.rows, t.k0, t.depth)) return;
  p.operands->pack_a(row, t.rows, t.k0, t.depth, round, a->values.data());
  if (p.operands->a_range(&a->range)) return;
  a->range = range_of_zeros();
  kernel.measure(a->values.data(), t.rows * t.depth, &a->range);
}

// Makes one work block. `call` is the number of the call that it belongs to.
void run_block(const WorkBlock& block, const Kernels& kernel, const Arithmetic& arithmetic,
               uint64_t seed, uint64_t call) {
  thread_local Scratch scratch;
  const Product& p = *block.product;
  const Accumulator acc = accumulator_from(arithmetic.accumulator);
  scratch.fit(std::min(acc.positions_together(), p.length));
  const Rounder round_a(kernel, p.exchanged ? arithmetic.right : arithmetic.left);
  const Rounder round_b(kernel, p.exchanged ? arithmetic.left : arithmetic.right);
  Tile tile{};
  tile.rows = block.rows;
  tile.lanes = ceil_div(block.lanes, kPanel) * kPanel;
  tile.a = scratch.a.values.data();
  tile.b = scratch.b.data();
  tile.b_facts = &scratch.b_facts;
  tile.inner = scratch.inner.data();
  tile.outer = scratch.outer.data();
  tile.stride = tile.lanes;
  tile.accumulator = arithmetic.accumulator;
  tile.length = p.position == nullptr ? p.length : p.position[p.length];
  tile.seed = seed;
  tile.row_id = scratch.row_id;
  tile.lane_id = scratch.lane_id;
  tile.lanes_are_rows = p.lanes_are_rows;
  tile.started = p.initial != nullptr;
  tile.exchanged = p.exchanged;
  std::fill_n(tile.inner, block.rows * tile.lanes, 0.0f);
  std::fill_n(tile.outer, block.rows * tile.lanes, 0.0f);
  tile.plane = block.rows * tile.lanes;
  tile.plane_count = plane_count(acc, tile.length);
  scratch.planes.assign(tile.plane_count * tile.plane, 0.0f);
  scratch.held.assign(tile.plane_count * tile.plane / kPanel, 0);
  tile.planes = scratch.planes.data();
  tile.held = scratch.held.data();
  if (draws(acc)) {
    p.operands->row_ids(block.row, block.rows, scratch.row_id);
    p.operands->lane_ids(block.lane, block.lanes, scratch.lane_id);
    std::fill(scratch.lane_id + block.lanes, scratch.lane_id + tile.lanes, 0);
  }

  if (tile.started) start_sums(block, tile, kernel, acc.chunk > 0, &scratch.initial);

  const int64_t groups = ceil_div(block.rows, kRowGroup);
  // Short sums take more rows at a time: runs to pack are longer, and calls fewer.
  const int64_t most = std::max(p.depth, acc.positions_together());
  const int64_t depth = std::clamp<int64_t>(p.length, 1, most);
  const auto accumulate = acc.has_running_sum() ? kernel.accumulate : kernel.accumulate_ordered;
  const int64_t parts =
      p.block_rows > 0
          ? 1
          : ceil_div(groups, std::max<int64_t>(1, kMaxRows * kMaxDepth / depth / kRowGroup));
  for (int64_t k = 0; k < p.length; k += tile.depth) {
    tile.k0 = k;
    tile.position = p.position == nullptr ? nullptr : p.position + k;
    tile.depth = block_end(p, acc, k, most) - k;
    p.operands->pack_b(k, tile.depth, block.lane, block.lanes, round_b, scratch.b.data());
    scratch.b_facts.clear();
    scratch.b_facts.ranged = p.operands->b_range(&scratch.b_facts.range);
    BlockMarks marks(block, k, tile.depth, &scratch);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t row = part * groups / parts * kRowGroup;
      const int64_t end = std::min(block.rows, (part + 1) * groups / parts * kRowGroup);
      Tile rows = tile;
      rows.rows = end - row;
      rows.inner += row * tile.stride;
      rows.outer += row * tile.stride;
      rows.row_id += row;
      rows.planes += row * tile.stride;
      rows.held += row * tile.stride / kPanel;
      if (p.spread) {
        SpreadBlock a;
        p.operands->spread_a(block.row + row, rows.rows, k, tile.depth, round_a, &a);
        rows.a = a.a;
        rows.a_range = a.range;
        rows.a_count = a.count;
        rows.row_at = a.row_at;
        rows.step_at = a.step_at;
      } else {
        pack_rows(p, block.row + row, rows, kernel, round_a, call, &scratch.a);
        rows.a_range = &scratch.a.range;
      }
      marks.take(row, rows.rows);
      rows.marks = &marks;
      accumulate(rows);
    }
  }
  store_block(block, tile, kernel, arithmetic.result, acc.chunk > 0);
}

}  // namespace

void Rounder::operator()(float* x, int64_t count) const {
  round_in_place(kernels_, quantizer_, x, count);
}

void pack_panels(const Kernels& kernels, const float* from, int64_t k_stride, int64_t lane_stride,
                 int64_t depth, int64_t lanes, float* b) {
  for (int64_t l0 = 0; l0 < lanes;
       l0 += kPanel, b += depth * kPanel, from += kPanel * lane_stride) {
    const int64_t width = std::min<int64_t>(kPanel, lanes - l0);
    if (width < kPanel) std::fill_n(b, depth * kPanel, 0.0f);
    if (k_stride == 1 && lane_stride != 1) {
      kernels.transpose(from, lane_stride, width, depth, b, kPanel);
    } else if (lane_stride == 1 && width == kPanel) {
      for (int64_t i = 0; i < depth; ++i)
        std::memcpy(b + i * kPanel, from + i * k_stride, kPanel * sizeof(float));
    } else {
      for (int64_t i = 0; i < depth; ++i) {
        for (int64_t l = 0; l < width; ++l)
          b[i * kPanel + l] = from[i * k_stride + l * lane_stride];
      }
    }
  }
}

void accumulate_products(const std::vector<Product>& products, const Arithmetic& arithmetic,
                         uint64_t seed, int threads) {
  static std::atomic<uint64_t> calls{0};
  const uint64_t call = ++calls;
  const Kernels& kernel = kernels();
  thread_local std::vector<WorkBlock> scratch;
  std::vector<WorkBlock>& blocks = scratch;
  thread_local std::vector<Turn> scratch_turns;
  std::vector<Turn>& turns = scratch_turns;
  cut(products, threads, &blocks, &turns);
  if (blocks.size() == 1) {
    const FloatEnvironment environment;
    return run_block(blocks[0], kernel, arithmetic, seed, call);
  }
  parallel_for(static_cast<int64_t>(turns.size()), threads, [&](int64_t turn) {
    for (int64_t i = turns[turn].first; i < turns[turn].end; ++i)
      run_block(blocks[i], kernel, arithmetic, seed, call);
  });
}

void accumulate_elements(float* total, const float* addend, int64_t rows, int64_t cols,
                         const int64_t* accumulator, const DrawKey& first, int threads,
                         const AddendScales& scales) {
  constexpr int64_t kRows = 16, kCols = 1024;
  const Kernels& kernel = kernels();
  parallel_ranges(rows, kRows, threads, [&](int64_t row, int64_t end) {
    uint64_t row_id[kRows], lane_id[kCols];
    std::iota(row_id, row_id + (end - row), first.row + static_cast<uint64_t>(row));
    AddBlock job{};
    job.stride = job.addend_row = cols;
    job.rows = end - row;
    job.addend_lane = 1;
    job.accumulator = accumulator;
    job.seed = first.seed;
    job.site = first.site;
    job.k = first.k;
    job.row_id = row_id;
    job.lane_id = lane_id;
    job.scale_order = scales.order;
    if (scales.rows != nullptr) job.row_scale = scales.rows + row;
    for (int64_t col = 0; col < cols; col += kCols) {
      if (scales.rows != nullptr) job.lane_scale = scales.cols + col;
      std::iota(lane_id, lane_id + kCols, first.col + static_cast<uint64_t>(col));
      job.sum = total + row * cols + col;
      job.addend = addend + row * cols + col;
      job.lanes = std::min(kCols, cols - col);
      kernel.add(job);
    }
  });
}

}  // namespace lpk
