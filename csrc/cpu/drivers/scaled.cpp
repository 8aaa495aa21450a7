// Sums of codes, and the outer sum that their scales enter (docs/contract.md, "Products of scaled
// operands").
//
//   for each segment of k: inner <- the sum of its products;  outer <- round(outer + inner s_a s_b)
// Where both sums are float32 to nearest even, one kernel makes them, for a block of k with several
// segments (csrc/cpu/sums/scaled). Else the kernel of the accumulator makes the inner sums of one
// segment, and a pass over the outer sums adds them.
#include "cpu/sums/scaled/scaled.h"

#include <algorithm>
#include <cfloat>
#include <tuple>
#include <utility>

#include "aligned.h"
#include "block_run.h"

namespace lpk {
namespace {

// The segments of a block of k, and their scales.
struct BlockScales {
  std::vector<Segment> segments;
  std::vector<float> rows, lanes;  // segments x rows, segments x lanes
  OperandRange row_range, lane_range;
};

// B in bytes, of the blocks of k of some lanes: row blocks that a thread takes one after the other
// share them.
struct ByteBlocks {
  static constexpr size_t kMost = 64;
  std::tuple<uint64_t, const Product*, int64_t> key;
  BytePanels blocks[kMost];

  void take(uint64_t call, const Product* product, int64_t lane) {
    const auto next = std::make_tuple(call, product, lane);
    if (std::exchange(key, next) == next) return;
    for (BytePanels& block : blocks) block.state = BytePanels::kUnknown;
  }
  // Long sums make the blocks that have no place of their own anew.
  BytePanels* at(size_t index) {
    if (index < kMost - 1) return &blocks[index];
    blocks[kMost - 1].state = BytePanels::kUnknown;
    return &blocks[kMost - 1];
  }
};

struct ScaledScratch {
  BlockScales scales;
  ByteBlocks bytes;
  AlignedFloats outer = AlignedFloats(kUnitRows * kLanes);
};

// The kernels that make inner and outer sums at once: of any codes, and of integers of eight bits.
struct FusedKernels {
  void (*any)(const ScaledTile&) = nullptr;
  bool (*bytes)(const ScaledTile&) = nullptr;
};

FusedKernels fused_kernels(const KernelFamilies& of) {
  return {of.scaled, has_vnni() ? of.scaled_bytes : nullptr};
}

// Where the segment that holds product k ends.
int64_t segment_end(const Product& p, int64_t k) {
  int64_t end = p.length;
  for (const ScaledSide* side : {&p.scales->rows, &p.scales->lanes}) {
    if (side->size > 0) end = std::min(end, (k / side->size + 1) * side->size);
  }
  return end;
}

bool all_zero(const ScaledSide& side, int64_t row, int64_t first, int64_t end) {
  const float* x = side.codes + row * side.codes_row;
  for (int64_t k = first; k < end; ++k) {
    if (x[k * side.codes_k] != 0) return false;
  }
  return true;
}

// to[segment][i]: the scales of rows first .. first + count of a side. A block of zeros has the
// least scale of e8m0, which would keep products of scales from being float32; it might be any.
OperandRange gather(const ScaledSide& side, const BlockScales& of, int64_t k, int64_t first,
                    int64_t count, int64_t stride, const Kernels& kernel, std::vector<float>* to) {
  const int64_t segments = static_cast<int64_t>(of.segments.size());
  to->assign(segments * stride, 0.0f);
  for (int64_t s = 0; s < segments; ++s) {
    const Segment& segment = of.segments[s];
    const int64_t at = side.segment(k + segment.first);
    for (int64_t i = 0; i < count; ++i) {
      float x = side.at(first + i, at);
      if (x > 0 && x < FLT_MIN && all_zero(side, first + i, k + segment.first, k + segment.end))
        x = 0;
      (*to)[s * stride + i] = x;
    }
  }
  OperandRange range = range_of_zeros();
  kernel.measure(to->data(), segments * stride, &range);
  return range;
}

// Whether every product of two scales is a float32.
bool products_fit(const OperandRange& a, const OperandRange& b) {
  const AddendRange p = product_range(a, b);
  return p.plain && p.width <= 24 && p.lowest >= -149 && p.highest <= 128;
}

bool sums_in_float32(const Accumulator& acc) {
  return is_float32(acc.fmt) && acc.rounding == Rounding::kNearestEven && is_float32(acc.outer) &&
         acc.outer_rounding == Rounding::kNearestEven && acc.has_running_sum() && !acc.has_product;
}

class ScaledBlock {
 public:
  ScaledBlock(const WorkBlock& block, const Kernels& kernel, const int64_t* accumulator,
              BlockRun* run, ScaledScratch* scratch)
      : block_(block),
        kernel_(kernel),
        accumulator_(accumulator),
        run_(*run),
        scales_(scratch->scales),
        bytes_(scratch->bytes),
        outer_(scratch->outer.data()),
        fused_(sums_in_float32(accumulator_from(accumulator)) ? fused_kernels(kernel.families)
                                                              : FusedKernels{}) {}

  void run() {
    const Product& p = *block_.product;
    uint64_t number = 0;
    size_t index = 0;
    for (int64_t k = 0; k < p.length; ++index) {
      const int64_t end = take_segments(k);
      if (fused_.any != nullptr && end - k <= run_.most() && fits()) {
        add_fused(k, end, bytes_.at(index));
      } else {
        for (size_t s = 0; s < scales_.segments.size(); ++s) add_segment(k, s, number + s);
      }
      number += scales_.segments.size();
      k = end;
    }
  }

 private:
  bool fits() const {
    return p_scales().order != ScaleOrder::kExact ||
           products_fit(scales_.row_range, scales_.lane_range);
  }
  const ProductScales& p_scales() const { return *block_.product->scales; }

  // Lists the segments from k on that one block of k holds, at least one, with their scales.
  // Returns where they end.
  int64_t take_segments(int64_t k) {
    const Product& p = *block_.product;
    scales_.segments.clear();
    int64_t end = k, next = segment_end(p, k);
    do {
      scales_.segments.push_back({end - k, next - k});
      end = next;
      next = end < p.length ? segment_end(p, end) : end;
    } while (fused_.any != nullptr && end < p.length && next - k <= run_.most());
    scales_.row_range = gather(p.scales->rows, scales_, k, block_.rows.first, block_.rows.count,
                               block_.rows.count, kernel_, &scales_.rows);
    scales_.lane_range = gather(p.scales->lanes, scales_, k, block_.lanes.first, block_.lanes.count,
                                run_.tile.lanes, kernel_, &scales_.lanes);
    return end;
  }

  void add_fused(int64_t k, int64_t end, BytePanels* bytes) {
    run_.tile.k0 = k;
    run_.tile.depth = end - k;
    bool packed = bytes->state == BytePanels::kUnknown || fused_.bytes == nullptr;
    if (packed) run_.pack_b(k);
    run_.for_rows(k, [&](const Tile& rows, int64_t row) {
      ScaledTile t{};
      static_cast<Tile&>(t) = rows;
      t.outer = outer_ + row * rows.stride;
      t.segments = scales_.segments.data();
      t.segment_count = static_cast<int64_t>(scales_.segments.size());
      t.row_scale = scales_.rows.data() + row;
      t.row_scale_stride = block_.rows.count;
      t.lane_scale = scales_.lanes.data();
      t.scale_order = p_scales().order;
      t.row_range = scales_.row_range;
      t.lane_range = scales_.lane_range;
      t.bytes = bytes;
      if (fused_.bytes != nullptr && add_bytes(k, row, t)) return;
      if (!packed) run_.pack_b(k);
      packed = true;
      run_.pack_a(row, k, &t);
      fused_.any(t);
    });
  }

  // A is read where it lies, if its rows are dense. Returns false, and does nothing, where codes
  // are no integers of eight bits.
  bool add_bytes(int64_t k, int64_t row, ScaledTile t) {
    if (t.bytes->state == BytePanels::kRefused) return false;
    const ScaledSide& side = p_scales().rows;
    OperandRange range = range_of_zeros();
    if (side.codes_k == 1) {
      t.a = side.codes + (block_.rows.first + row) * side.codes_row + k;
      t.a_stride = side.codes_row;
      t.a_range = &range;
      for (int64_t r = 0; r < t.rows; ++r) kernel_.measure(t.a + r * t.a_stride, t.depth, &range);
    } else {
      run_.pack_a(row, k, &t);
      t.a_stride = t.depth;
    }
    return fused_.bytes(t);
  }

  // One segment as a sum of its own, which the tile's inner sums hold; then the outer sums.
  void add_segment(int64_t k, size_t s, uint64_t number) {
    Tile& tile = run_.tile;
    const Segment& segment = scales_.segments[s];
    const auto accumulate = run_.kernel();
    const int64_t together = run_.acc.positions_together();
    // Trees and aligned blocks begin anew, and draw nothing. Draws of running sums are those of
    // their positions in all of k.
    const int64_t first = k + segment.first, length = segment.end - segment.first;
    const int64_t origin = run_.acc.has_running_sum() ? first : 0;
    tile.length = origin + length;
    run_.clear_inner();
    for (int64_t done = 0; done < length; done += tile.depth) {
      tile.k0 = origin + done;
      tile.depth = std::min(run_.most(), length - done);
      if (done + tile.depth < length) tile.depth -= tile.depth % together;
      run_.add(first + done, accumulate);
    }
    if (run_.acc.fmt.one_zero) make_zeros_positive(tile.inner, block_.rows.count * tile.stride);
    AddBlock job = run_.addition(outer_, accumulator_);
    job.addend = tile.inner;
    job.row_scale = scales_.rows.data() + s * block_.rows.count;
    job.lane_scale = scales_.lanes.data() + s * tile.lanes;
    job.scale_order = p_scales().order;
    job.site = kSiteOuter;
    job.k = number;
    kernel_.add(job);
  }

  const WorkBlock& block_;
  const Kernels& kernel_;
  const int64_t* accumulator_;
  BlockRun& run_;
  BlockScales& scales_;
  ByteBlocks& bytes_;
  float* outer_;
  FusedKernels fused_;
};

}  // namespace

void run_scaled_block(const WorkBlock& block, const Kernels& kernel, const Arithmetic& arithmetic,
                      uint64_t seed, uint64_t call) {
  using In = InAccumulator;
  thread_local ScaledScratch scratch;
  // The accumulator of one segment.
  int64_t inner[kAccumulatorInts];
  std::copy_n(arithmetic.accumulator, kAccumulatorInts, inner);
  inner[In::kChunk] = 0;
  std::copy_n(inner + In::kFormat, kFormatInts, inner + In::kOuter);
  inner[In::kOuterRounding] = inner[In::kRounding];
  Arithmetic of_segments = arithmetic;
  of_segments.accumulator = inner;
  BlockRun run(block, kernel, of_segments, seed, call);
  float* outer = scratch.outer.data();
  std::fill_n(outer, block.rows.count * run.tile.lanes, 0.0f);
  run.take_ids();
  scratch.bytes.take(call, block.product, block.lanes.first);
  if (block.product->initial != nullptr) run.start(outer, arithmetic.accumulator);
  ScaledBlock(block, kernel, arithmetic.accumulator, &run, &scratch).run();
  run.store(outer, arithmetic.accumulator, arithmetic.result);
}

}  // namespace lpk
