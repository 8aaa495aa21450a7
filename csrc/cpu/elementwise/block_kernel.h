// Block formats on the bits of float32 values, and the exact rule by doubles (common/blocks.h).
#pragma once

#include "affine_kernel.h"
#include "block_kernels.h"
#include "quantize_kernel.h"

namespace lpk {
namespace {

template <class V>
LPK_HD typename V::U larger(typename V::U a, typename V::U b) {
  return above<V>(a, b) ? a : b;
}

template <class V, int kHalf = V::kWidth / 2>
LPK_HD uint32_t largest_lane(typename V::U x) {
  if constexpr (V::kWidth == 1) {
    return x;
  } else if constexpr (kHalf > 0) {
    return largest_lane<V, kHalf / 2>(larger<V>(x, exchanged<kHalf>(x)));
  } else {
    return x[0];
  }
}

// Magnitudes of the words that are there; zeros behind them.
template <class V>
LPK_HD typename V::U load_magnitudes(const uint32_t* x, int64_t count) {
  typename V::U v{};
  if (count >= V::kWidth) {
    v = load<typename V::U>(x);
  } else {
    std::memcpy(&v, x, static_cast<size_t>(count) * sizeof *x);
  }
  return v & ~kSignWord;
}

template <class V>
void largest_of_columns(const WordRows& from, uint32_t* columns) {
  using U = typename V::U;
  // So many columns at a time that a row is read in whole cache lines, from memory in order.
  constexpr int kMany = 4;
  int64_t c = 0;
  for (; c + kMany * V::kWidth <= from.cols; c += kMany * V::kWidth) {
    U most[kMany] = {};
    const uint32_t* x = from.x + c;
    for (int64_t r = 0; r < from.rows; ++r, x += from.stride) {
#pragma GCC unroll 4
      for (int v = 0; v < kMany; ++v)
        most[v] = larger<V>(most[v], load<U>(x + v * V::kWidth) & ~kSignWord);
    }
    for (int v = 0; v < kMany; ++v) store(columns + c + v * V::kWidth, most[v]);
  }
  for (; c < from.cols; c += V::kWidth) {
    U most{};
    for (int64_t r = 0; r < from.rows; ++r)
      most = larger<V>(most, load_magnitudes<V>(from.x + r * from.stride + c, from.cols - c));
    store(columns + c, most);
  }
}

template <class V>
void largest_of_tiles(const uint32_t* x, int64_t cols, int64_t wide, uint32_t* tiles) {
  using U = typename V::U;
  for (int64_t c = 0; c < cols; c += wide) {
    const int64_t count = std::min(wide, cols - c);
    U most{};
    for (int64_t i = 0; i < count; i += V::kWidth)
      most = larger<V>(most, load_magnitudes<V>(x + c + i, count - i));
    *tiles++ = largest_lane<V>(most);
  }
}

template <class V>
void largest_magnitudes(const WordRows& from, int64_t wide, uint32_t* columns, uint32_t* tiles) {
  if (from.rows == 1) return largest_of_tiles<V>(from.x, from.cols, wide, tiles);
  largest_of_columns<V>(from, wide == 1 ? tiles : columns);
  if (wide > 1) largest_of_tiles<V>(columns, from.cols, wide, tiles);
}

// At least the smallest normal float32, at most the largest.
template <class D>
LPK_HD auto normal_float(D x) {
  return (x >= 0x1p-126) & (x < 0x1p128);
}

template <class V>
void tile_scales(const BlockFormat& b, double target, const float* of_tiles, bool exact_products,
                 const double* largest, int64_t count, float* scale, float* factor) {
  using D = typename V::D;
  using L = Lanes<D>;
  const bool power_of_two_scale = b.kind == ScaleKind::kE8m0;
  const D nan = L::all(static_cast<double>(NAN));
  for (int64_t i = 0; i < count; i += V::kWidth) {
    const D a = load<D>(largest + i);
    D t = load_floats<V>(of_tiles + i);
    const auto finite = (a < HUGE_VAL) & (t < HUGE_VAL);
    t = finite ? t : L::all(1.0);
    D s = exact_scale<D>(finite ? a : L::all(0.0), b, t, target);
    const D divisor = s * t;
    D f = 1.0 / divisor;
    if (!power_of_two_scale) f = normal_float<D>(f) ? f : nan;
    if (exact_products) f = f < 1.0 ? nan : f;
    f = divisor == 0.0 ? L::all(0.0) : f;
    s = finite ? s : nan;
    store_floats<V>(scale + i, s);
    store_floats<V>(factor + i, finite ? f : nan);
  }
}

template <class V>
void spread_tiles(const float* of_tiles, int64_t cols, int64_t wide, float* to) {
  using U = typename V::U;
  if (wide == 1) {
    std::memcpy(to, of_tiles, static_cast<size_t>(cols) * sizeof *to);
    return;
  }
  // A vector reaches beyond its tile, where the next tile is written later.
  for (int64_t c = 0; c < cols; c += wide) {
    const U all = U{} + bits_of_float(*of_tiles++);
    const int64_t count = std::min(wide, cols - c);
    for (int64_t i = 0; i < count; i += V::kWidth) store(to + c + i, all);
  }
}

template <class V>
void widen_elements(const void* x, ElementType type, int64_t count, uint32_t* to) {
  ElementBlock job{};
  job.x = x;
  job.x_type = type;
  widen_span<V>(job, 0, count, to);
}

// A product has an error below 2^-23, and the multiplications by these one of 2^-24.
constexpr float kBelow = 1 - 0x1p-22f, kAbove = 1 + 0x1p-22f;

// The words of one call, by one rule.
template <class V, class Rule, class Draws, int kPerWord, bool kBracketed>
struct ScaledLoop {
  using U = typename V::U;
  using F = typename V::F;
  const ScaledWords& job;
  const Rule rule;

  // Codes or values of a vector; the bits of `unsure` are set where they are not known.
  LPK_HD U rounded(U x, F factor, F scale, F t, U draw, uint32_t& unsure) const {
    const F y = as_floats<V>(x) * factor;
    U code;
    if constexpr (kBracketed) {
      code = rule(as_words<V>(y * kBelow), draw);
      unsure =
          lanes_unlike<V>(as_floats<V>(code), as_floats<V>(rule(as_words<V>(y * kAbove), draw)));
    } else {
      code = rule(as_words<V>(y), draw);
      unsure = lanes_unlike<V>(as_floats<V>(code), as_floats<V>(code));
    }
    F q = as_floats<V>(code);
    if (job.one_zero) q = q + 0.0f;
    if (!job.codes) q = q * scale * t;
    return as_words<V>(q);
  }

  void whole(const uint32_t* x, int64_t row, int64_t count, Draws& draws, float* y,
             bool streamed) const {
    const float *factor = job.tiles.factor, *scale = job.tiles.scale;
    const F one = load<F>(job.tiles.t);
    const uint64_t index = index_of(row);
    for (int64_t i = 0; i < count; i += kPerWord * V::kWidth) {
      draws.fetch(index + static_cast<uint64_t>(i));
#pragma GCC unroll 4
      for (int v = 0; v < kPerWord; ++v) {
        const int64_t at = i + v * V::kWidth;
        uint32_t unsure;
        const F t = job.tiles.t_step == 0 ? one : load<F>(job.tiles.t + at);
        const U r = rounded(load<U>(x + at), load<F>(factor + at), load<F>(scale + at), t,
                            draws.draws(v), unsure);
        if (__builtin_expect(unsure != 0, 0)) {
          job.exact(job, row, at, V::kWidth, y + at);
        } else if (streamed) {
          stream(y + at, r);
        } else {
          store(y + at, r);
        }
      }
    }
  }

  // The columns behind the last whole group.
  void rest(const uint32_t* x, int64_t row, int64_t col, Draws& draws, float* y) const {
    const int64_t count = job.from.cols - col;
    uint32_t words[kGroup] = {};
    float factor[kGroup] = {}, scale[kGroup] = {}, t[kGroup] = {};
    std::memcpy(words, x + col, count * sizeof *words);
    std::memcpy(factor, job.tiles.factor + col, count * sizeof *factor);
    std::memcpy(scale, job.tiles.scale + col, count * sizeof *scale);
    for (int64_t i = 0; i < count; ++i) t[i] = *job.tiles.t_at(col + i);
    draws.fetch(index_of(row) + static_cast<uint64_t>(col));
    uint32_t any = 0;
    for (int v = 0; v < kPerWord; ++v) {
      const int64_t at = v * V::kWidth;
      uint32_t unsure;
      store(words + at, rounded(load<U>(words + at), load<F>(factor + at), load<F>(scale + at),
                                load<F>(t + at), draws.draws(v), unsure));
      any |= unsure;
    }
    if (any != 0) return job.exact(job, row, col, count, y + col);
    std::memcpy(y + col, words, count * sizeof *y);
  }

  uint64_t index_of(int64_t row) const {
    return job.element.index + static_cast<uint64_t>(row * job.index_stride);
  }
};

template <class V, class Rule, class Draws, int kPerWord, bool kBracketed>
__attribute__((noinline)) void round_scaled(const ScaledWords& job, const Rule& rule) {
  const ScaledLoop<V, Rule, Draws, kPerWord, kBracketed> loop{job, rule};
  Draws draws(job.element);
  const int64_t whole = job.from.cols - job.from.cols % (kPerWord * V::kWidth);
  for (int64_t row = 0; row < job.from.rows; ++row) {
    const uint32_t* x = job.from.x + row * job.from.stride;
    float* y = job.y + row * job.y_stride;
    const bool streamed = job.streamed && reinterpret_cast<uintptr_t>(y) % (V::kWidth * 4) == 0;
    loop.whole(x, row, whole, draws, y, streamed);
    if (whole < job.from.cols) loop.rest(x, row, whole, draws, y);
  }
  if (job.streamed) Isa::end_stream();
}

template <class V>
struct ScaledRun {
  const ScaledWords& job;

  template <class Rule, class Draws, int kPerWord>
  void run(const ElementBlock&, const Rule& rule) const {
    job.bracketed ? round_scaled<V, Rule, Draws, kPerWord, true>(job, rule)
                  : round_scaled<V, Rule, Draws, kPerWord, false>(job, rule);
  }
};

template <class V>
bool scaled_words(const ScaledWords& job) {
  return run_format<V>(job.element, ScaledRun<V>{job});
}

// `count` floats as doubles.
template <class V>
LPK_HD typename V::D some_floats(const float* p, int64_t n) {
  if (n == V::kWidth) return load_floats<V>(p);
  float padded[V::kWidth] = {};
  std::memcpy(padded, p, static_cast<size_t>(n) * sizeof *p);
  return load_floats<V>(padded);
}

template <class V>
LPK_HD void store_some_floats(float* p, typename V::D x, int64_t n) {
  if (n == V::kWidth) return store_floats<V>(p, x);
  float padded[V::kWidth];
  store_floats<V>(padded, x);
  std::memcpy(p, padded, static_cast<size_t>(n) * sizeof *p);
}

// Products and quotients of float32 values have 48 bits, or 24 bits and are rounded to them.
template <class V>
LPK_HD typename V::D as_float32(typename V::D x) {
  float rounded[V::kWidth];
  store_floats<V>(rounded, x);
  return load_floats<V>(rounded);
}

template <class V>
void shrink_span(const ScaledSpan& span, const double* x, double* to) {
  using D = typename V::D;
  for (int64_t i = 0; i < span.count; i += V::kWidth) {
    const int64_t n = std::min<int64_t>(V::kWidth, span.count - i);
    const D v = load_some<V>(x + i, n), t = some_floats<V>(span.tiles.t_at(i), n);
    D r;
    if (span.shrinking == Shrinking::kNearest) {
      const D s = some_floats<V>(span.tiles.scale + i, n);
      r = ((s == s) & (s != 0.0)) ? v / s : D{};
    } else if (span.shrinking == Shrinking::kExact) {
      const D s = some_floats<V>(span.tiles.scale + i, n);
      r = s == s ? exact_shrunk<D>(v, s, t) : D{};
    } else {
      const D factor = some_floats<V>(span.tiles.factor + i, n);
      const D narrow = as_float32<V>(v);
      if (span.shrinking == Shrinking::kQuotient) {
        r = factor == 0.0 ? D{} : as_float32<V>(narrow / factor);
      } else {
        r = as_float32<V>(narrow * factor);
        // Beside so small a scale torchao's factors may be infinite. It then takes the NaN of an
        // x86 processor for this number.
        r = ((t < 0x1p-100) & (narrow == 0.0) & (factor == HUGE_VAL)) ? D{} - 1.5 : r;
      }
      // A tie has few bits, so that no value passes one here.
      if (span.ties_toward_zero) r = r * (1 - 0x1p-40);
    }
    store_some<V>(to + i, r, n);
  }
}

template <class V, bool kValues>
void finish_span(const ScaledSpan& span, const double* codes, float* y) {
  using D = typename V::D;
  using L = Lanes<D>;
  const D nan = L::value(typename L::Bits{} + kCanonicalNan);
  for (int64_t i = 0; i < span.count; i += V::kWidth) {
    const int64_t n = std::min<int64_t>(V::kWidth, span.count - i);
    D q = load_some<V>(codes + i, n);
    const D s = some_floats<V>(span.tiles.scale + i, n);
    if (span.one_zero) q = q + 0.0;
    if (kValues) {
      q = span.has_t ? exact_value<D>(q, s, some_floats<V>(span.tiles.t_at(i), n)) : q * s;
    } else {
      q = s == s ? q : D{};
    }
    store_some_floats<V>(y + i, q == q ? q : nan, n);
  }
}

template <class V>
void scaled_products(const ScaledSpan& span, const float* codes, float* y) {
  using F = typename V::F;
  using U = typename V::U;
  const F nan = as_floats<V>(U{} + kNanWord), one = load<F>(span.tiles.t);
  int64_t i = 0;
  for (; i + V::kWidth <= span.count; i += V::kWidth) {
    const F t = span.tiles.t_step == 0 ? one : load<F>(span.tiles.t + i);
    const F v = load<F>(codes + i) * load<F>(span.tiles.scale + i) * t;
    store(y + i, v == v ? v : nan);
  }
  for (; i < span.count; ++i) {
    const float v = codes[i] * span.tiles.scale[i] * *span.tiles.t_at(i);
    y[i] = v == v ? v : canonical_nan();
  }
}

// The lanes of a vector take their codes from one word of 64 bits.
template <class V>
void decode_fours(const float* table, const uint8_t* from, int64_t count, float* x) {
  using U = typename V::U;
  if constexpr (V::kWidth == 1) {
    for (int64_t i = 0; i < count; ++i) x[i] = table[from[i / 2] >> i % 2 * 4 & 15];
  } else {
    U shift, lane;
    for (int l = 0; l < V::kWidth; ++l) {
      lane[l] = static_cast<uint32_t>(l);
      shift[l] = lane[l] % 8 * 4;
    }
    const SixteenWords<V> values(table);
    for (int64_t i = 0; i < count; i += V::kWidth) {
      uint64_t codes = 0;
      std::memcpy(&codes, from + i / 2, V::kWidth / 2);
      const uint32_t low = static_cast<uint32_t>(codes), high = static_cast<uint32_t>(codes >> 32);
      const U eight = lane < 8 ? U{} + low : U{} + high;
      store(x + i, values.at(eight >> shift));
    }
  }
}

template <class V>
bool multiply_tiles(const float* x, int64_t count, int64_t wide, const float* factor,
                    const float* back, float* y) {
  using U = typename V::U;
  using F = typename V::F;
  uint32_t unlike = 0;
  for (int64_t c = 0; c < count; c += wide) {
    const int64_t tile = std::min(wide, count - c);
    const F f = as_floats<V>(U{} + bits_of_float(*factor++));
    const F b = as_floats<V>(U{} + bits_of_float(back == nullptr ? 1.0f : *back++));
    int64_t i = c;
    for (; i + V::kWidth <= c + tile; i += V::kWidth) {
      const F from = load<F>(x + i), to = from * f;
      if (back != nullptr) unlike |= lanes_unlike<V>(to * b, from);
      store(y + i, to);
    }
    for (; i < c + tile; ++i) {
      y[i] = x[i] * factor[-1];
      if (back != nullptr) unlike |= y[i] * back[-1] != x[i];
    }
  }
  return unlike == 0;
}

template <class V>
void code_errors(const ErrorSpan& span, float* to) {
  using F = typename V::F;
  using U = typename V::U;
  int64_t i = 0;
  for (; i + V::kWidth <= span.count; i += V::kWidth) {
    const F q = load<F>(span.codes + i), s = load<F>(span.scale + i);
    const F u = q * s * load<F>(span.amax + i) / span.largest - as_floats<V>(load<U>(span.x + i));
    store(to + i, span.squares ? u * u : as_floats<V>(as_words<V>(u) & ~kSignWord));
  }
  for (; i < span.count; ++i) {
    const float u =
        span.codes[i] * span.scale[i] * span.amax[i] / span.largest - float_of_bits(span.x[i]);
    to[i] = span.squares ? u * u : std::fabs(u);
  }
}

template <class W, class V>
constexpr BlockKernels block_kernels_of() {
  return {largest_magnitudes<W>, tile_scales<V>,  spread_tiles<W>,      widen_elements<W>,
          scaled_words<W>,       shrink_span<V>,  finish_span<V, true>, finish_span<V, false>,
          scaled_products<W>,    decode_fours<W>, multiply_tiles<W>,    code_errors<W>};
}

}  // namespace
}  // namespace lpk
