// Convolutions as implicit matrix products: fprop, dgrad and wgrad of 1-d to 3-d convolutions
// (missing dimensions are 1).
#pragma once

#include <cstdint>

#include "cpu/drivers/gemm.h"

namespace lpk {

constexpr int kSpatial = 3;

// A tensor of an image: base, and strides of its two leading dimensions and of the spatial ones, in
// elements.
template <class T>
struct Image {
  T* data;
  int64_t outer;  // n of x and y, c_out of w
  int64_t inner;  // channel
  int64_t spatial[kSpatial];
};

struct ConvShape {
  int64_t batch, groups, in_channels, out_channels;  // channels per group
  int64_t input[kSpatial];
  int64_t kernel[kSpatial];
  int64_t output[kSpatial];
  int64_t stride[kSpatial];
  int64_t padding[kSpatial];
  int64_t dilation[kSpatial];
};

// y = x * w (+ bias of each output channel).   k runs over (c_in, kd, kh, kw).
void conv_fprop(const ConvShape& shape, Image<const float> x, Image<const float> w,
                const float* bias, Image<float> y, const Arithmetic& arithmetic, uint64_t seed,
                int threads);

// dx from dy and w.   k runs over (c_out, kd, kh, kw).
void conv_dgrad(const ConvShape& shape, Image<const float> dy, Image<const float> w,
                Image<float> dx, const Arithmetic& arithmetic, uint64_t seed, int threads);

// dw from x and dy.   k runs over (n, d_out, h_out, w_out).
void conv_wgrad(const ConvShape& shape, Image<const float> x, Image<const float> dy,
                Image<float> dw, const Arithmetic& arithmetic, uint64_t seed, int threads);

}  // namespace lpk
