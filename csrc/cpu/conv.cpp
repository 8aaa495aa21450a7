// Each pass is a product whose A side is gathered from an image tap by tap; taps on padding or
// between strides are absent.
//
//   pass   rows                  lanes    k                      A            B
//   fprop  (n, d, h, w) of y     c_out    (c_in, kd, kh, kw)     x            w
//   dgrad  (n, d, h, w) of dx    c_in     (c_out, kd, kh, kw)    dy           w
//   wgrad  (c_in, kd, kh, kw)    c_out    (n, d, h, w) of dy     x            dy     (keyed by row
//   c_out: lanes are rows)
#include "conv.h"

#include <algorithm>

#include "gemm.h"
#include "tile.h"

namespace lpk {
namespace {

int64_t volume(const int64_t* size) { return size[0] * size[1] * size[2]; }

// Mixed-radix counter over (outer, d, h, w), the order of every row, lane and k of this file.
struct Position {
  int64_t outer;
  int64_t at[kSpatial];

  Position(int64_t linear, const int64_t* size) {
    for (int i = kSpatial - 1; i >= 0; --i) {
      at[i] = linear % size[i];
      linear /= size[i];
    }
    outer = linear;
  }
  void next(const int64_t* size) {
    for (int i = kSpatial - 1; i >= 0; --i) {
      if (++at[i] < size[i]) return;
      at[i] = 0;
    }
    ++outer;
  }
};

template <class T>
T* element(const Image<T>& image, int64_t outer, int64_t inner, const int64_t* at) {
  return image.data + outer * image.outer + inner * image.inner + at[0] * image.spatial[0] +
         at[1] * image.spatial[1] + at[2] * image.spatial[2];
}

// Common to the three passes: the shape and the group.
class ConvOperands : public Operands {
 public:
  ConvOperands(const ConvShape& shape, int64_t group) : s_(shape), group_(group) {}
  float bias(int64_t, int64_t) const override { return 0.0f; }

 protected:
  int64_t input_channel(int64_t c) const { return group_ * s_.in_channels + c; }
  int64_t output_channel(int64_t o) const { return group_ * s_.out_channels + o; }

  // The input position that tap `tap` of output position `out` reads; false on padding.
  bool input_of(const int64_t* out, const int64_t* tap, int64_t* in) const {
    for (int i = 0; i < kSpatial; ++i) {
      in[i] = out[i] * s_.stride[i] - s_.padding[i] + tap[i] * s_.dilation[i];
      if (in[i] < 0 || in[i] >= s_.input[i]) return false;
    }
    return true;
  }
  // The output position whose tap `tap` reads input position `in`; false between strides and
  // outside.
  bool output_of(const int64_t* in, const int64_t* tap, int64_t* out) const {
    for (int i = 0; i < kSpatial; ++i) {
      const int64_t scaled = in[i] + s_.padding[i] - tap[i] * s_.dilation[i];
      if (scaled < 0 || scaled % s_.stride[i] != 0) return false;
      out[i] = scaled / s_.stride[i];
      if (out[i] >= s_.output[i]) return false;
    }
    return true;
  }

  const ConvShape& s_;
  int64_t group_;
};

// One row of A: value(k position) or absent, for depth positions from k on.
template <class Tap>
bool gather_row(int64_t k, int64_t depth, const int64_t* size, float* a, uint8_t* absent,
                const Tap& tap) {
  bool any = false;
  Position position(k, size);
  for (int64_t i = 0; i < depth; ++i, position.next(size)) {
    const float* value = tap(position);
    absent[i] = value == nullptr;
    any |= value == nullptr;
    a[i] = value == nullptr ? 0.0f : *value;
  }
  return any;
}

// Panels of B whose element (k, lane) lies at start(position) + lane * stride.
template <class Start>
void pack_panels(int64_t k, int64_t depth, int64_t lanes, const int64_t* size, int64_t stride,
                 float* b, const Start& start) {
  for (int64_t l0 = 0; l0 < lanes; l0 += kPanel, b += depth * kPanel) {
    const int64_t width = std::min<int64_t>(kPanel, lanes - l0);
    Position position(k, size);
    for (int64_t i = 0; i < depth; ++i, position.next(size)) {
      const float* from = start(position) + l0 * stride;
      float* to = b + i * kPanel;
      for (int64_t l = 0; l < width; ++l) to[l] = from[l * stride];
      std::fill(to + width, to + kPanel, 0.0f);
    }
  }
}

class FpropOperands : public ConvOperands {
 public:
  FpropOperands(const ConvShape& shape, int64_t group, const Image<const float>& x,
                const Image<const float>& w, const float* bias, const Image<float>& y)
      : ConvOperands(shape, group), x_(x), w_(w), bias_(bias), y_(y) {}

  bool pack_a(int64_t row, int64_t rows, int64_t k, int64_t depth, float* a,
              uint8_t* absent) const override {
    bool any = false;
    Position at(row, s_.output);
    for (int64_t r = 0; r < rows; ++r, at.next(s_.output), a += depth, absent += depth) {
      any |= gather_row(k, depth, s_.kernel, a, absent, [&](const Position& tap) -> const float* {
        int64_t in[kSpatial];
        if (!input_of(at.at, tap.at, in)) return nullptr;
        return element(x_, at.outer, input_channel(tap.outer), in);
      });
    }
    return any;
  }
  void pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes, float* b) const override {
    pack_panels(k, depth, lanes, s_.kernel, w_.outer, b, [&](const Position& tap) {
      return element(w_, output_channel(lane), tap.outer, tap.at);
    });
  }
  uint64_t row_id(int64_t row) const override { return row; }
  uint64_t lane_id(int64_t lane) const override { return output_channel(lane); }
  float* output(int64_t row, int64_t lane) const override {
    const Position at(row, s_.output);
    return element(y_, at.outer, output_channel(lane), at.at);
  }
  float bias(int64_t, int64_t lane) const override { return bias_[output_channel(lane)]; }

 private:
  Image<const float> x_, w_;
  const float* bias_;
  Image<float> y_;
};

class DgradOperands : public ConvOperands {
 public:
  DgradOperands(const ConvShape& shape, int64_t group, const Image<const float>& dy,
                const Image<const float>& w, const Image<float>& dx)
      : ConvOperands(shape, group), dy_(dy), w_(w), dx_(dx) {}

  bool pack_a(int64_t row, int64_t rows, int64_t k, int64_t depth, float* a,
              uint8_t* absent) const override {
    bool any = false;
    Position at(row, s_.input);
    for (int64_t r = 0; r < rows; ++r, at.next(s_.input), a += depth, absent += depth) {
      any |= gather_row(k, depth, s_.kernel, a, absent, [&](const Position& tap) -> const float* {
        int64_t out[kSpatial];
        if (!output_of(at.at, tap.at, out)) return nullptr;
        return element(dy_, at.outer, output_channel(tap.outer), out);
      });
    }
    return any;
  }
  void pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes, float* b) const override {
    pack_panels(k, depth, lanes, s_.kernel, w_.inner, b, [&](const Position& tap) {
      return element(w_, output_channel(tap.outer), lane, tap.at);
    });
  }
  uint64_t row_id(int64_t row) const override { return row; }
  uint64_t lane_id(int64_t lane) const override { return input_channel(lane); }
  float* output(int64_t row, int64_t lane) const override {
    const Position at(row, s_.input);
    return element(dx_, at.outer, input_channel(lane), at.at);
  }

 private:
  Image<const float> dy_, w_;
  Image<float> dx_;
};

class WgradOperands : public ConvOperands {
 public:
  WgradOperands(const ConvShape& shape, int64_t group, const Image<const float>& x,
                const Image<const float>& dy, const Image<float>& dw)
      : ConvOperands(shape, group), x_(x), dy_(dy), dw_(dw) {}

  bool pack_a(int64_t row, int64_t rows, int64_t k, int64_t depth, float* a,
              uint8_t* absent) const override {
    bool any = false;
    Position tap(row, s_.kernel);
    for (int64_t r = 0; r < rows; ++r, tap.next(s_.kernel), a += depth, absent += depth) {
      any |= gather_row(k, depth, s_.output, a, absent, [&](const Position& at) -> const float* {
        int64_t in[kSpatial];
        if (!input_of(at.at, tap.at, in)) return nullptr;
        return element(x_, at.outer, input_channel(tap.outer), in);
      });
    }
    return any;
  }
  void pack_b(int64_t k, int64_t depth, int64_t lane, int64_t lanes, float* b) const override {
    pack_panels(k, depth, lanes, s_.output, dy_.inner, b, [&](const Position& at) {
      return element(dy_, at.outer, output_channel(lane), at.at);
    });
  }
  // Columns of the key number (c_in, kd, kh, kw) with c_in global across groups.
  uint64_t row_id(int64_t row) const override { return input_channel(0) * volume(s_.kernel) + row; }
  uint64_t lane_id(int64_t lane) const override { return output_channel(lane); }
  float* output(int64_t row, int64_t lane) const override {
    const Position tap(row, s_.kernel);
    return element(dw_, output_channel(lane), tap.outer, tap.at);
  }

 private:
  Image<const float> x_, dy_;
  Image<float> dw_;
};

template <class Pass, class... Args>
void run_groups(const ConvShape& shape, Product product, const int64_t* accumulator, uint64_t seed,
                int threads, const Args&... args) {
  if (product.rows == 0 || product.lanes == 0) return;
  std::vector<Pass> operands;
  operands.reserve(shape.groups);
  std::vector<Product> products;
  products.reserve(shape.groups);
  for (int64_t group = 0; group < shape.groups; ++group) {
    operands.emplace_back(shape, group, args...);
    product.operands = &operands.back();
    products.push_back(product);
  }
  accumulate_products(products, accumulator, seed, threads);
}

}  // namespace

void conv_fprop(const ConvShape& s, Image<const float> x, Image<const float> w, const float* bias,
                Image<float> y, const int64_t* accumulator, uint64_t seed, int threads) {
  const Product product{s.batch * volume(s.output),
                        s.out_channels,
                        s.in_channels * volume(s.kernel),
                        false,
                        bias != nullptr,
                        nullptr};
  run_groups<FpropOperands>(s, product, accumulator, seed, threads, x, w, bias, y);
}

void conv_dgrad(const ConvShape& s, Image<const float> dy, Image<const float> w, Image<float> dx,
                const int64_t* accumulator, uint64_t seed, int threads) {
  const Product product{s.batch * volume(s.input),
                        s.in_channels,
                        s.out_channels * volume(s.kernel),
                        false,
                        false,
                        nullptr};
  run_groups<DgradOperands>(s, product, accumulator, seed, threads, dy, w, dx);
}

void conv_wgrad(const ConvShape& s, Image<const float> x, Image<const float> dy, Image<float> dw,
                const int64_t* accumulator, uint64_t seed, int threads) {
  const Product product{s.in_channels * volume(s.kernel),
                        s.out_channels,
                        s.batch * volume(s.output),
                        true,
                        false,
                        nullptr};
  run_groups<WgradOperands>(s, product, accumulator, seed, threads, x, dy, dw);
}

}  // namespace lpk
