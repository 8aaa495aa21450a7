// The three passes of a convolution against plain loops over taps.
#pragma once

#include "check.h"
#include "cpu/conv/conv.h"
#include "sums.h"

namespace lpk_fuzz {

struct Triple {
  int64_t v[3];
  int64_t volume() const { return v[0] * v[1] * v[2]; }
  // Position `linear` in row-major order.
  Triple at(int64_t linear) const {
    return {{linear / (v[1] * v[2]), linear / v[2] % v[1], linear % v[2]}};
  }
};

struct Conv {
  const char* name;
  int64_t batch, groups, in_channels, out_channels;  // channels per group
  Triple input, kernel, stride, padding, dilation;

  Triple output() const {
    Triple size;
    for (int i = 0; i < 3; ++i) {
      const int64_t reach = dilation.v[i] * (kernel.v[i] - 1) + 1;
      size.v[i] = (input.v[i] + 2 * padding.v[i] - reach) / stride.v[i] + 1;
    }
    return size;
  }
  lpk::ConvShape shape() const {
    lpk::ConvShape s{batch, groups, in_channels, out_channels, {}, {}, {}, {}, {}, {}};
    const Triple out = output();
    for (int i = 0; i < 3; ++i) {
      s.input[i] = input.v[i];
      s.kernel[i] = kernel.v[i];
      s.output[i] = out.v[i];
      s.stride[i] = stride.v[i];
      s.padding[i] = padding.v[i];
      s.dilation[i] = dilation.v[i];
    }
    return s;
  }
};

// A tensor (outer, channel, d, h, w), channels first or last in memory.
struct Volume {
  std::vector<float> data;
  int64_t outer, channel;
  int64_t spatial[3];

  Volume(std::vector<float> values, int64_t channels, const Triple& size, bool channels_last)
      : data(std::move(values)) {
    const int64_t step = channels_last ? channels : 1;
    outer = channels * size.volume();
    channel = channels_last ? 1 : size.volume();
    spatial[0] = size.v[1] * size.v[2] * step;
    spatial[1] = size.v[2] * step;
    spatial[2] = step;
  }
  int64_t index(int64_t n, int64_t c, const Triple& at) const {
    return n * outer + c * channel + at.v[0] * spatial[0] + at.v[1] * spatial[1] +
           at.v[2] * spatial[2];
  }
  float get(int64_t n, int64_t c, const Triple& at) const {
    return data[static_cast<size_t>(index(n, c, at))];
  }
  template <class T>
  lpk::Image<T> image() {
    return {data.data(), outer, channel, {spatial[0], spatial[1], spatial[2]}};
  }
};

class ConvCheck {
 public:
  // Operands are multiplied by 2^exponent.
  ConvCheck(const Conv& conv, const AccumulatorSpec& spec, Data data, bool last, int threads,
            Source source, int exponent = 0)
      : source_(source),
        exponent_(exponent),
        c_(conv),
        spec_(spec),
        sum_(spec, kSeed),
        data_(data),
        last_(last),
        threads_(threads),
        out_(conv.output()),
        x_(tensor(conv.batch, conv.groups * conv.in_channels, conv.input)),
        w_(tensor(conv.groups * conv.out_channels, conv.in_channels, conv.kernel)),
        dy_(tensor(conv.batch, conv.groups * conv.out_channels, out_)) {}

  void fprop() {
    const std::vector<float> bias = operands(data_, source_, c_.groups * c_.out_channels);
    Volume y = tensor(c_.batch, c_.groups * c_.out_channels, out_);
    lpk::conv_fprop(c_.shape(), x_.image<const float>(), w_.image<const float>(), bias.data(),
                    y.image<float>(), {spec_.ints().data()}, kSeed, threads_);
    const int64_t taps = c_.kernel.volume();
    for (int64_t row = 0; row < c_.batch * out_.volume(); ++row) {
      const int64_t n = row / out_.volume();
      const Triple at = out_.at(row % out_.volume());
      for (int64_t o = 0; o < c_.groups * c_.out_channels; ++o) {
        const auto tap = [&](int64_t k) {
          return product(x_, n, o / c_.out_channels * c_.in_channels + k / taps, at,
                         c_.kernel.at(k % taps), w_.get(o, k / taps, c_.kernel.at(k % taps)));
        };
        expect("fprop", y, n, o, at, c_.in_channels * taps, row, o, tap, &bias[o]);
      }
    }
  }

  void dgrad() {
    Volume dx = tensor(c_.batch, c_.groups * c_.in_channels, c_.input);
    lpk::conv_dgrad(c_.shape(), dy_.image<const float>(), w_.image<const float>(),
                    dx.image<float>(), {spec_.ints().data()}, kSeed, threads_);
    const int64_t taps = c_.kernel.volume();
    for (int64_t row = 0; row < c_.batch * c_.input.volume(); ++row) {
      const int64_t n = row / c_.input.volume();
      const Triple at = c_.input.at(row % c_.input.volume());
      for (int64_t i = 0; i < c_.groups * c_.in_channels; ++i) {
        const auto tap = [&](int64_t k) -> Tap {
          const int64_t o = i / c_.in_channels * c_.out_channels + k / taps;
          const Triple kernel = c_.kernel.at(k % taps);
          Triple from;
          for (int d = 0; d < 3; ++d) {
            const int64_t scaled = at.v[d] + c_.padding.v[d] - kernel.v[d] * c_.dilation.v[d];
            from.v[d] = scaled / c_.stride.v[d];
            if (scaled < 0 || scaled % c_.stride.v[d] != 0 || from.v[d] >= out_.v[d])
              return {false, 0, 0};
          }
          return {true, dy_.get(n, o, from), w_.get(o, i % c_.in_channels, kernel)};
        };
        expect("dgrad", dx, n, i, at, c_.out_channels * taps, row, i, tap, nullptr);
      }
    }
  }

  void wgrad() {
    Volume dw = tensor(c_.groups * c_.out_channels, c_.in_channels, c_.kernel);
    lpk::conv_wgrad(c_.shape(), x_.image<const float>(), dy_.image<const float>(),
                    dw.image<float>(), {spec_.ints().data()}, kSeed, threads_);
    const int64_t taps = c_.kernel.volume();
    for (int64_t o = 0; o < c_.groups * c_.out_channels; ++o) {
      const int64_t first = o / c_.out_channels * c_.in_channels;
      for (int64_t i = 0; i < c_.in_channels * taps; ++i) {
        const Triple kernel = c_.kernel.at(i % taps);
        const auto tap = [&](int64_t k) -> Tap {
          const Triple at = out_.at(k % out_.volume());
          const int64_t n = k / out_.volume();
          const Tap t = product(x_, n, first + i / taps, at, kernel, dy_.get(n, o, at));
          return {t.present, t.b, t.a};  // the gradient is the left one
        };
        expect("wgrad", dw, o, i / taps, kernel, c_.batch * out_.volume(), o, first * taps + i, tap,
               nullptr);
      }
    }
  }

 private:
  Volume tensor(int64_t outer, int64_t channels, const Triple& size) {
    const int64_t count = outer * channels * size.volume();
    return {operands(data_, source_, count, exponent_), channels, size, last_};
  }

  // `other` times the input that tap `kernel` of output position `at` reads. The product is absent
  // on padding.
  Tap product(const Volume& x, int64_t n, int64_t channel, const Triple& at, const Triple& kernel,
              float other) const {
    Triple in;
    for (int d = 0; d < 3; ++d) {
      in.v[d] = at.v[d] * c_.stride.v[d] - c_.padding.v[d] + kernel.v[d] * c_.dilation.v[d];
      if (in.v[d] < 0 || in.v[d] >= c_.input.v[d]) return {false, 0, 0};
    }
    return {true, x.get(n, channel, in), other};
  }

  template <class Taps>
  void expect(const char* pass, const Volume& result, int64_t n, int64_t channel, const Triple& at,
              int64_t length, int64_t row, int64_t col, const Taps& tap, const float* bias) {
    const float want =
        sum_.run(length, static_cast<uint64_t>(row), static_cast<uint64_t>(col), tap, bias);
    CHECK_SAME(result.get(n, channel, at), want,
               text("%s %s, %s, %s data: row %d column %d", c_.name, pass, spec_.name.c_str(),
                    kDataNames[static_cast<int>(data_)], int(row), int(col)));
  }

  static constexpr uint64_t kSeed = 0x2545F4914F6CDD1D;

  Source source_;
  int exponent_;
  const Conv& c_;
  const AccumulatorSpec& spec_;
  PlainSum sum_;
  Data data_;
  bool last_;
  int threads_;
  Triple out_;
  Volume x_, w_, dy_;
};

}  // namespace lpk_fuzz
