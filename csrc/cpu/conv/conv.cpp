// Each pass is a product whose A side is gathered from an image tap by tap; taps on padding or
// between strides are absent.
//
//   pass   rows                  lanes    k                      A            B
//   fprop  (n, d, h, w) of y     c_out    (c_in, kd, kh, kw)     x            w
//   dgrad  (n, d, h, w) of dx    c_in     (c_out, kd, kh, kw)    dy           w
//   wgrad  (c_in, kd, kh, kw)    c_out    (n, d, h, w) of dy     x            dy     (keyed by row
//   c_out: lanes are rows)
//
// The positions of dx that are equal modulo the stride read the same taps. They are a product of
// their own, without the taps between strides; the product is told which positions these are.
#include "conv.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/accumulate.h"
#include "conv_operands.h"
#include "cpu/drivers/parallel.h"
#include "cpu/sums/half/half_sums.h"

namespace lpk {
namespace {

// fprop and wgrad: every tap of every position of y.
Gather forward_gather(const ConvShape& s) {
  Gather g;
  for (int i = 0; i < kSpatial; ++i) {
    g.grid[i] = s.output[i];
    g.source[i] = s.input[i];
    g.step[i] = s.stride[i];
    g.kernel[i] = s.kernel[i];
    for (int64_t tap = 0; tap < s.kernel[i]; ++tap)
      g.taps[i].push_back({tap, tap * s.dilation[i] - s.padding[i]});
  }
  return g;
}

// dgrad: positions of dx at `phase` modulo the stride, and the taps through which they reach dy.
Gather backward_gather(const ConvShape& s, const int64_t* phase) {
  Gather g;
  for (int i = 0; i < kSpatial; ++i) {
    g.grid[i] = (s.input[i] - phase[i] + s.stride[i] - 1) / s.stride[i];
    g.source[i] = s.output[i];
    g.step[i] = 1;
    g.kernel[i] = s.kernel[i];
    for (int64_t tap = 0; tap < s.kernel[i]; ++tap) {
      const int64_t reach = phase[i] + s.padding[i] - tap * s.dilation[i];
      if (reach % s.stride[i] == 0) g.taps[i].push_back({tap, reach / s.stride[i]});
    }
  }
  return g;
}

// fprop from x to y (phase: null), or the positions of dx at `phase` from dy to dx.
PositionPass position_pass(const ConvShape& s, const Image<const float>& source,
                           const Image<const float>& w, const Image<float>& result,
                           const int64_t* phase) {
  const bool forward = phase == nullptr;
  PositionPass p;
  p.gather = forward ? forward_gather(s) : backward_gather(s, phase);
  p.source = source;
  p.result = result;
  p.channels = forward ? s.in_channels : s.out_channels;
  p.lanes = forward ? s.out_channels : s.in_channels;
  p.weight = w.data;
  p.weight_channel = forward ? w.inner : w.outer;
  p.weight_lane = forward ? w.outer : w.inner;
  p.weight_group = s.out_channels * w.outer;
  for (int i = 0; i < kSpatial; ++i) {
    p.result_size[i] = forward ? s.output[i] : s.input[i];
    p.result_step[i] = forward ? 1 : s.stride[i];
    p.result_phase[i] = forward ? 0 : phase[i];
  }
  p.list_taps(w.spatial);
  p.find_inside();
  return p;
}

// +0 everywhere.
void clear(const Image<float>& image, int64_t batch, int64_t channels, const int64_t* size,
           int threads) {
  parallel_for(batch * channels, threads, [&](int64_t i) {
    float* to = image.data + i / channels * image.outer + i % channels * image.inner;
    for (int64_t d = 0; d < size[0]; ++d) {
      for (int64_t h = 0; h < size[1]; ++h) {
        float* line = to + d * image.spatial[0] + h * image.spatial[1];
        for (int64_t w = 0; w < size[2]; ++w) line[w * image.spatial[2]] = 0.0f;
      }
    }
  });
}

// The integers of an accumulator with the formats of its operands exchanged.
void exchange_operands(const int64_t* from, int64_t* to) {
  using In = InAccumulator;
  std::copy_n(from, kAccumulatorInts, to);
  std::copy_n(from + In::kRight, kFormatInts, to + In::kLeft);
  std::copy_n(from + In::kLeft, kFormatInts, to + In::kRight);
}

// A group with at least so many lanes fills panels on its own.
constexpr int64_t kSpreadLanes = kPanel / 2;
// With at most so many channels, positions make the better lanes in any layout.
constexpr int64_t kFewChannels = 32;

// Whether ChannelOperands takes the pass: the more numerous side is on the lanes, if its lines are
// contiguous. In half precision this was measured to be slower, so it is not done there.
bool by_channels(const PositionPass& p, int64_t positions, const Arithmetic& arithmetic) {
  if (p.lanes <= kFewChannels) return true;
  if (half_precision(accumulator_from(arithmetic.accumulator).fmt)) return false;
  return positions >= p.lanes && p.source.spatial[2] == 1 && p.result.spatial[2] == 1;
}

bool spreads(int64_t groups, int64_t lanes, int64_t taps) {
  return groups > 1 && lanes <= kSpreadLanes && taps <= kMaxDepth;
}

// The operands of every product stay until the end.
struct Work {
  std::vector<std::unique_ptr<Operands>> operands;
  std::vector<Product> products;

  Product& add(std::unique_ptr<Operands> of, int64_t rows, int64_t lanes, int64_t length,
               int64_t depth) {
    operands.push_back(std::move(of));
    products.push_back(
        {rows, lanes, length, depth, false, nullptr, nullptr, operands.back().get()});
    return products.back();
  }
};

// One pass, for every group.
void add_pass(const PositionPass& pass, const ConvShape& s, const float* bias,
              const Arithmetic& arithmetic, Work* work) {
  const int64_t positions = pass.rows(s.batch);
  if (positions == 0 || pass.lanes == 0) return;
  const int64_t taps = pass.gather.tap_count();
  const int64_t length = pass.channels * taps;
  // With a kernel of one tap it is a plain product.
  const int64_t depth = even_depth(length, taps == 1 ? kWholeChunks : taps);
  const int64_t* position = pass.position.empty() ? nullptr : pass.position.data();
  // Nothing is spread where blocks of k may end inside a channel.
  const bool whole_channels = accumulator_from(arithmetic.accumulator).positions_together() == 1;
  if (whole_channels && spreads(s.groups, pass.lanes, taps)) {
    const int64_t all = s.groups * pass.lanes;
    const int64_t spread_depth = taps * std::clamp<int64_t>(kMaxDepth / 2 / taps, 1, pass.channels);
    for (int64_t first = 0; first < all; first += kPanel) {
      const int64_t lanes = std::min<int64_t>(kPanel, all - first);
      Product& p = work->add(std::make_unique<SpreadPositions>(pass, first, lanes), positions,
                             lanes, length, spread_depth);
      p.lane_bias = bias == nullptr ? nullptr : bias + first;
      p.position = position;
      p.family = first;
      p.spread = true;
    }
    return;
  }
  for (int64_t group = 0; group < s.groups; ++group) {
    const float* group_bias = bias == nullptr ? nullptr : bias + group * pass.lanes;
    const bool exchanged = by_channels(pass, positions, arithmetic);
    Product& p = exchanged ? work->add(std::make_unique<ChannelOperands>(pass, group), pass.lanes,
                                       positions, length, depth)
                           : work->add(std::make_unique<PositionOperands>(pass, group), positions,
                                       pass.lanes, length, depth);
    p.exchanged = p.lanes_are_rows = exchanged;
    (exchanged ? p.row_bias : p.lane_bias) = group_bias;
    p.position = position;
    p.family = group;
  }
}

void run_positions(const std::vector<PositionPass>& passes, const ConvShape& s, const float* bias,
                   const Arithmetic& arithmetic, uint64_t seed, int threads) {
  Work work;
  for (const PositionPass& pass : passes) add_pass(pass, s, bias, arithmetic, &work);
  accumulate_products(work.products, arithmetic, seed, threads);
}

}  // namespace

void conv_fprop(const ConvShape& s, Image<const float> x, Image<const float> w, const float* bias,
                Image<float> y, const Arithmetic& arithmetic, uint64_t seed, int threads) {
  run_positions({position_pass(s, x, w, y, nullptr)}, s, bias, arithmetic, seed, threads);
}

void conv_dgrad(const ConvShape& s, Image<const float> dy, Image<const float> w, Image<float> dx,
                const Arithmetic& arithmetic, uint64_t seed, int threads) {
  std::vector<PositionPass> passes;
  bool untouched = false;
  int64_t phase[kSpatial];
  // A stride beyond the image leaves phases without positions.
  for (phase[0] = 0; phase[0] < std::min(s.stride[0], s.input[0]); ++phase[0]) {
    for (phase[1] = 0; phase[1] < std::min(s.stride[1], s.input[1]); ++phase[1]) {
      for (phase[2] = 0; phase[2] < std::min(s.stride[2], s.input[2]); ++phase[2]) {
        PositionPass pass = position_pass(s, dy, w, dx, phase);
        if (pass.gather.tap_count() > 0) {
          passes.push_back(std::move(pass));
        } else {
          untouched = true;
        }
      }
    }
  }
  if (untouched) clear(dx, s.batch, s.groups * s.in_channels, s.input, threads);
  run_positions(passes, s, nullptr, arithmetic, seed, threads);
}

void conv_wgrad(const ConvShape& s, Image<const float> x, Image<const float> dy, Image<float> dw,
                const Arithmetic& how, uint64_t seed, int threads) {
  // The formats of an accumulator's operands are those of (dy, x); here x stands on the left.
  int64_t accumulator[kAccumulatorInts];
  exchange_operands(how.accumulator, accumulator);
  Arithmetic arithmetic = how;
  arithmetic.accumulator = accumulator;
  const TapPass pass{forward_gather(s), x, dy, dw, s.in_channels, s.out_channels};
  const int64_t rows = s.in_channels * pass.gather.kernel_volume();
  if (rows == 0 || s.out_channels == 0) return;
  const int64_t length = s.batch * pass.gather.grid_volume();
  Work work;
  const Accumulator acc = accumulator_from(accumulator);
  const bool fits = acc.positions_together() <= kMaxDepth;
  if (fits && spreads(s.groups, s.out_channels, rows) && !acc.draws()) {
    const int64_t all = s.groups * s.out_channels;
    const int64_t depth = std::max(kMaxSpreadDepth / s.in_channels, kMaxDepth / 2);
    for (int64_t first = 0; first < all; first += kPanel) {
      const int64_t lanes = std::min<int64_t>(kPanel, all - first);
      Product& p =
          work.add(std::make_unique<SpreadTaps>(pass, first, lanes), rows, lanes, length, depth);
      p.lanes_are_rows = true;
      p.spread = true;
    }
  } else {
    for (int64_t group = 0; group < s.groups; ++group) {
      Product& p = work.add(std::make_unique<TapOperands>(pass, group), rows, s.out_channels,
                            length, even_depth(length, kWholeChunks));
      p.lanes_are_rows = true;
    }
  }
  accumulate_products(work.products, arithmetic, seed, threads);
}

}  // namespace lpk
