// Each pass is a product whose A side is gathered from an image tap by tap; taps on padding or
// between strides are absent.
//
//   pass   rows                  lanes    k                      A            B
//   fprop  (n, d, h, w) of y     c_out    (c_in, kd, kh, kw)     x            w
//   dgrad  (n, d, h, w) of dx    c_in     (c_out, kd, kh, kw)    dy           w
//   wgrad  (c_in, kd, kh, kw)    c_out    (n, d, h, w) of dy     x            dy     (keyed by row
//   c_out: lanes are rows)
//
// The positions of dx that are equal modulo the stride read the same taps: they are a product of
// their own, without the taps between strides wherever the place of a product in its sum does not
// matter.
#include "conv.h"

#include <algorithm>
#include <utility>

#include "../common/accumulate.h"
#include "conv_operands.h"
#include "parallel.h"

namespace lpk {
namespace {

// Blocks of k hold whole channels, if they can.
int64_t block_depth(int64_t taps) {
  return taps <= kMaxDepth ? kMaxDepth / taps * taps : kMaxDepth;
}

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

// Which taps k counts, and where their weights lie.
void list_taps(const Image<const float>& w, bool all, PositionPass* pass) {
  const Gather& g = pass->gather;
  std::vector<int64_t> indices(g.kernel_volume(), -1);
  int64_t index = 0;
  for (const AxisTap& d : g.taps[0]) {
    for (const AxisTap& h : g.taps[1]) {
      for (const AxisTap& v : g.taps[2])
        indices[(d.tap * g.kernel[1] + h.tap) * g.kernel[2] + v.tap] = index++;
    }
  }
  for (int64_t t = 0; t < g.kernel_volume(); ++t) {
    if (indices[t] < 0 && !all) continue;
    pass->taps.push_back(indices[t]);
    pass->weight_offset.push_back(t / g.kernel[2] / g.kernel[1] * w.spatial[0] +
                                  t / g.kernel[2] % g.kernel[1] * w.spatial[1] +
                                  t % g.kernel[2] * w.spatial[2]);
  }
  pass->find_inside();
}

PositionPass fprop_pass(const ConvShape& s, const Image<const float>& x,
                        const Image<const float>& w, const Image<float>& y) {
  PositionPass p;
  p.gather = forward_gather(s);
  p.source = x;
  p.weight = w.data;
  p.weight_channel = w.inner;
  p.weight_lane = w.outer;
  p.channels = s.in_channels;
  p.lanes = s.out_channels;
  p.source_group = s.in_channels;
  p.weight_group = s.out_channels * w.outer;
  p.result_group = s.out_channels * y.inner;
  p.result = y;
  for (int i = 0; i < kSpatial; ++i) {
    p.result_size[i] = s.output[i];
    p.result_step[i] = 1;
    p.result_phase[i] = 0;
  }
  list_taps(w, true, &p);
  return p;
}

PositionPass dgrad_pass(const ConvShape& s, const Image<const float>& dy,
                        const Image<const float>& w, const Image<float>& dx, const int64_t* phase,
                        bool all_taps) {
  PositionPass p;
  p.gather = backward_gather(s, phase);
  p.source = dy;
  p.weight = w.data;
  p.weight_channel = w.outer;
  p.weight_lane = w.inner;
  p.channels = s.out_channels;
  p.lanes = s.in_channels;
  p.source_group = s.out_channels;
  p.weight_group = s.out_channels * w.outer;
  p.result_group = s.in_channels * dx.inner;
  p.result = dx;
  for (int i = 0; i < kSpatial; ++i) {
    p.result_size[i] = s.input[i];
    p.result_step[i] = s.stride[i];
    p.result_phase[i] = phase[i];
  }
  list_taps(w, all_taps && p.gather.tap_count() > 0, &p);
  return p;
}

bool position_matters(const Arithmetic& arithmetic) {
  const Accumulator acc = accumulator_from(arithmetic.accumulator);
  return acc.chunk > 0 || acc.rounding == Rounding::kStochastic ||
         (acc.has_product && acc.product_rounding == Rounding::kStochastic);
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

// Every pass for every group.
void run_positions(const std::vector<PositionPass>& passes, const ConvShape& s, const float* bias,
                   const Arithmetic& arithmetic, uint64_t seed, int threads) {
  std::vector<PositionOperands> operands;
  operands.reserve(passes.size() * s.groups);
  std::vector<Product> products;
  products.reserve(passes.size() * s.groups);
  for (int64_t group = 0; group < s.groups; ++group) {
    for (const PositionPass& pass : passes) {
      const int64_t rows = pass.rows(s.batch);
      if (rows == 0 || pass.lanes == 0) continue;
      operands.emplace_back(pass, group);
      const float* lane_bias = bias == nullptr ? nullptr : bias + group * pass.lanes;
      products.push_back({rows, pass.lanes, pass.channels * pass.tap_count(),
                          block_depth(pass.tap_count()), false, nullptr, lane_bias,
                          &operands.back()});
    }
  }
  accumulate_products(products, arithmetic, seed, threads);
}

}  // namespace

void conv_fprop(const ConvShape& s, Image<const float> x, Image<const float> w, const float* bias,
                Image<float> y, const Arithmetic& arithmetic, uint64_t seed, int threads) {
  run_positions({fprop_pass(s, x, w, y)}, s, bias, arithmetic, seed, threads);
}

void conv_dgrad(const ConvShape& s, Image<const float> dy, Image<const float> w, Image<float> dx,
                const Arithmetic& arithmetic, uint64_t seed, int threads) {
  const bool all_taps = position_matters(arithmetic);
  std::vector<PositionPass> passes;
  bool untouched = false;
  int64_t phase[kSpatial];
  // A stride beyond the image leaves phases without positions.
  for (phase[0] = 0; phase[0] < std::min(s.stride[0], s.input[0]); ++phase[0]) {
    for (phase[1] = 0; phase[1] < std::min(s.stride[1], s.input[1]); ++phase[1]) {
      for (phase[2] = 0; phase[2] < std::min(s.stride[2], s.input[2]); ++phase[2]) {
        PositionPass pass = dgrad_pass(s, dy, w, dx, phase, all_taps);
        if (pass.tap_count() > 0) {
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
                const Arithmetic& arithmetic, uint64_t seed, int threads) {
  const TapPass pass{forward_gather(s), x, dy, dw, s.in_channels, s.out_channels};
  const int64_t rows = s.in_channels * pass.gather.kernel_volume();
  if (rows == 0 || s.out_channels == 0) return;
  std::vector<TapOperands> operands;
  operands.reserve(s.groups);
  std::vector<Product> products;
  products.reserve(s.groups);
  for (int64_t group = 0; group < s.groups; ++group) {
    operands.emplace_back(pass, group);
    products.push_back({rows, s.out_channels, s.batch * pass.gather.grid_volume(), kMaxDepth, true,
                        nullptr, nullptr, &operands.back()});
  }
  accumulate_products(products, arithmetic, seed, threads);
}

}  // namespace lpk
