// Blocks, affine slices and codes of csrc/cuda on the host, lane by lane in both orders, against
// csrc/cpu.
#include "cpu/elementwise/pack.h"
#include "cpu/elementwise/quantize.h"
#include "cuda/elementwise/affine_map.h"
#include "cuda/elementwise/code_map.h"
#include "tests/check.h"
#include "tests/groups.h"
#include "tests/values.h"

namespace lpk_test {
namespace {

using lpk::cuda::AxisSizes;
using lpk::cuda::BlockShape;
using lpk::cuda::BlockSpan;

constexpr uint64_t kSeed = 0x9e3779b97f4a7c15;
constexpr int kBits = 11;

const AxisSizes kSizes[] = {{1, 1, 1},  {1, 7, 1},   {3, 64, 1},  {2, 100, 1},
                            {4, 10, 5}, {1, 33, 40}, {70, 3, 2},  {2, 5, 4200},
                            {3, 1, 11}, {5, 300, 1}, {130, 1, 1}, {1, 1, 9000}};

int64_t count_of(const AxisSizes& s) { return s.outer * s.length * s.inner; }
std::string name_of_sizes(const AxisSizes& s) {
  return text("(%d, %d, %d)", int(s.outer), int(s.length), int(s.inner));
}

// Does the body lane by lane, forwards or backwards.
template <class Body>
void each_lane(int lanes, bool backwards, const Body& body) {
  for (int i = 0; i < lanes; ++i) body(backwards ? lanes - 1 - i : i);
}

double threshold(Rounding rounding, int64_t index) {
  if (rounding != Rounding::kStochastic) return 0;
  const uint32_t draw = lpk::random_draw(lpk::Rng::kFast, kSeed, lpk::kSiteQuantize, 0, 0,
                                         static_cast<uint64_t>(index), kBits);
  return lpk::stochastic_threshold<double>(draw, kBits);
}

lpk::QuantizeArgs cpu_arguments(const AxisSizes& s, const int64_t* format, Rounding rounding,
                                const void* x, lpk::ElementType type, float* y) {
  lpk::QuantizeArgs args{};
  args.x = x;
  args.y = y;
  args.x_type = type;
  args.y_type = lpk::ElementType::kFloat32;
  args.count = count_of(s);
  args.outer = s.outer, args.length = s.length, args.inner = s.inner;
  args.format = format;
  args.rounding = static_cast<int64_t>(rounding);
  args.random_bits = kBits;
  args.seed = kSeed;
  args.site = lpk::kSiteQuantize;
  args.threads = 1;
  return args;
}

// Numbers far apart, zeros of both signs, and now and then an infinity or NaN. There are whole
// stretches of zero and NaN.
std::vector<double> hard_doubles(int64_t count, uint64_t seed, bool specials, int spread) {
  Source source(seed);
  std::vector<double> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size();) {
    const int stretch = source.between(1, 40);
    const int kind = source.between(0, 7);
    for (int n = 0; n < stretch && i < x.size(); ++n, ++i) {
      x[i] = kind == 0               ? (source.once_in(2) ? 0.0 : -0.0)
             : kind == 1 && specials ? static_cast<double>(NAN)
                                     : source.number(-spread, spread);
      if (specials && source.once_in(60)) x[i] = source.once_in(2) ? HUGE_VAL : -HUGE_VAL;
    }
  }
  return x;
}

std::vector<float> narrowed(const std::vector<double>& x) {
  std::vector<float> y;
  for (double value : x) y.push_back(lpk::canonical_float(value));
  return y;
}

struct BlockFormatInts {
  int64_t ints[2 * lpk::kFormatInts];
  BlockFormatInts(const FormatInts& element, int64_t size) : ints{3, size, 1} {
    std::copy(element.begin(), element.end(), ints + lpk::kFormatInts);
  }
};

std::vector<BlockFormatInts> block_formats() {
  const Specials none = Specials::kNone;
  return {
      {float_ints(4, 3, {Specials::kFn, Overflow::kNan}), 32},
      {float_ints(2, 1, {none, Overflow::kSaturate}), 16},
      {float_ints(5, 2), 7},
      {float_ints(3, 2, {none, Overflow::kSaturate}), 1000},
      {float_ints(1, 6, {none, Overflow::kSaturate, true, 0}), 4},
  };
}

// Every element lies in one block, and every bit of the stream in one field.
void check_block_shape(const AxisSizes& s, int64_t size, int bits) {
  const BlockShape shape(s, size, bits);
  std::vector<int> seen(static_cast<size_t>(count_of(s)), 0);
  int64_t bit = 0;
  for (int64_t b = 0; b < shape.count(); ++b) {
    const BlockSpan span = shape.block(b);
    CHECK_SAME(span.bit, bit, name_of_sizes(s));
    bit += BlockShape::kScaleBits + span.count * bits;
    for (int64_t i = 0; i < span.count; ++i) ++seen[span.first + i * span.step];
  }
  for (int n : seen) CHECK(n == 1);
}

lpk::cuda::Extent whole_extent(const BlockSpan& span, int lanes, bool backwards,
                               const std::vector<double>& x) {
  lpk::cuda::Extent all{0.0, false, false};
  each_lane(lanes, backwards, [&](int lane) {
    const auto load = [&](int64_t i) { return x[i]; };
    all = joined(lpk::cuda::extent_of(span, lane, lanes, load), all);
  });
  return all;
}

void check_blocks(const AxisSizes& s, const BlockFormatInts& format, Rounding rounding,
                  const std::vector<double>& x) {
  std::vector<float> got(x.size(), 77.0f), want(x.size());
  lpk::quantize_blocks(
      cpu_arguments(s, format.ints, rounding, x.data(), lpk::ElementType::kFloat64, want.data()));
  const BlockShape shape(s, format.ints[1], 0);
  const lpk::BlockElement element(format.ints + lpk::kFormatInts);
  const int lanes = shape.wide() ? 32 : 1;
  for (int64_t b = 0; b < shape.count(); ++b) {
    const BlockSpan span = shape.block(b);
    const lpk::cuda::Extent extent = whole_extent(span, lanes, b % 2 == 0, x);
    each_lane(lanes, b % 2 != 0, [&](int lane) {
      lpk::cuda::round_block(
          span, lane, lanes, extent, element, rounding, [&](int64_t i) { return x[i]; },
          [&](int64_t i) { return threshold(rounding, i); }, got.data());
    });
  }
  for (size_t i = 0; i < x.size(); ++i) {
    CHECK_SAME(got[i], want[i],
               text("block of %d, %s, %s, element %d", int(format.ints[1]), name_of(rounding),
                    name_of_sizes(s).c_str(), int(i)));
  }
}

// The words, and the least index of a value without a code.
struct Packed {
  std::vector<uint32_t> words;
  int64_t refused = lpk::cuda::kNoneRefused;
};

Packed packed_blocks(const AxisSizes& s, const BlockFormatInts& format, const std::vector<float>& x,
                     int64_t bytes) {
  const lpk::Codec codec(format.ints + lpk::kFormatInts);
  const lpk::BlockElement element(format.ints + lpk::kFormatInts);
  const BlockShape shape(s, format.ints[1], codec.bits());
  const int lanes = shape.wide() ? 32 : 1;
  Packed p;
  p.words.assign(static_cast<size_t>((bytes + 3) / 4), 0);
  const std::vector<double> wide(x.begin(), x.end());
  for (int64_t b = 0; b < shape.count(); ++b) {
    const BlockSpan span = shape.block(b);
    const lpk::cuda::Extent extent = whole_extent(span, lanes, b % 2 == 0, wide);
    each_lane(lanes, b % 2 != 0, [&](int lane) {
      lpk::cuda::pack_block(span, lane, lanes, extent, element, codec, x.data(), p.words.data(),
                            &p.refused);
    });
  }
  return p;
}

void check_block_codes(const AxisSizes& s, const BlockFormatInts& format, bool quantized) {
  std::vector<double> raw = hard_doubles(count_of(s), 9, true, 60);
  std::vector<float> x = narrowed(raw);
  if (quantized) {
    lpk::quantize_blocks(cpu_arguments(s, format.ints, Rounding::kNearestEven, raw.data(),
                                       lpk::ElementType::kFloat64, x.data()));
  }
  const lpk::PackArgs args{format.ints, count_of(s), s.outer, s.length, s.inner, 1};
  std::vector<uint8_t> want(static_cast<size_t>(lpk::packed_bytes(args)));
  const bool held = lpk::pack(args, x.data(), want.data()) < 0;
  const Packed got = packed_blocks(s, format, x, lpk::packed_bytes(args));
  CHECK((got.refused == lpk::cuda::kNoneRefused) == held);
  if (!held) return;
  CHECK(std::memcmp(got.words.data(), want.data(), want.size()) == 0);
  const lpk::Codec codec(format.ints + lpk::kFormatInts);
  const BlockShape shape(s, format.ints[1], codec.bits());
  std::vector<float> back(x.size(), 77.0f);
  for (int64_t b = 0; b < shape.count(); ++b) {
    each_lane(32, b % 2 == 0, [&](int lane) {
      lpk::cuda::unpack_block(shape.block(b), lane, 32, codec, want.data(),
                              static_cast<int64_t>(want.size()), back.data());
    });
  }
  for (size_t i = 0; i < x.size(); ++i)
    CHECK_SAME(back[i], x[i], text("unpacked block %s, %d", name_of_sizes(s).c_str(), int(i)));
}

void test_blocks() {
  for (const AxisSizes& s : kSizes) {
    for (const BlockFormatInts& format : block_formats()) {
      check_block_shape(s, format.ints[1], 5);
      for (const bool specials : {false, true}) {
        const std::vector<double> x = hard_doubles(count_of(s), 3, specials, 120);
        for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic})
          check_blocks(s, format, rounding, x);
        check_block_codes(s, format, specials);
      }
    }
  }
  const AxisSizes s{2, 40, 1};
  for (const Rounding rounding : kRoundings)
    check_blocks(s, block_formats()[0], rounding, hard_doubles(count_of(s), 8, true, 4));
}

void check_affine(const AxisSizes& s, int bits, bool symmetric, Rounding rounding,
                  const std::vector<double>& x) {
  const int64_t format[lpk::kFormatInts] = {2, bits, symmetric, 1, 1, 0, 0, 0};
  std::vector<float> want(x.size());
  lpk::quantize_affine(
      cpu_arguments(s, format, rounding, x.data(), lpk::ElementType::kFloat64, want.data()));
  const lpk::cuda::SlicePieces pieces(s);
  const int lanes = pieces.wide ? 32 : 1;
  std::vector<lpk::cuda::Ends> ends(static_cast<size_t>(s.length), lpk::cuda::no_ends());
  std::vector<int> seen(x.size(), 0);
  const auto load = [&](int64_t i) {
    ++seen[i];
    return x[i];
  };
  for (int64_t i = pieces.count() - 1; i >= 0; --i) {
    const lpk::cuda::SlicePiece piece = pieces.piece(i);
    each_lane(lanes, i % 2 == 0, [&](int lane) {
      ends[piece.slice] = joined(ends[piece.slice], ends_of(piece, lane, lanes, load));
    });
  }
  const lpk::AffineCodes codes(format);
  const lpk::Format integers = lpk::number_format(lpk::kAffineIntegers);
  for (int64_t i = 0; i < count_of(s); ++i) {
    CHECK(seen[i] == 1);
    const lpk::AffineLine<double> line = line_between(ends[pieces.slice_of(i)], codes);
    const float got =
        lpk::cuda::affine_rounded(x[i], line, codes, integers, rounding, threshold(rounding, i));
    CHECK_SAME(got, want[i],
               text("affine %d bits, symmetric %d, %s, %s, element %d", bits, int(symmetric),
                    name_of(rounding), name_of_sizes(s).c_str(), int(i)));
  }
}

void test_affine() {
  for (double x : {0.0, -0.0, 1.0, -1.0, 0x1p-1074, -0x1p1000, HUGE_VAL, -HUGE_VAL})
    CHECK_SAME(lpk::cuda::keyed_value(lpk::cuda::sort_key(x)), x, std::string("key"));
  CHECK(lpk::cuda::sort_key(-2.0) < lpk::cuda::sort_key(-1.0) &&
        lpk::cuda::sort_key(-1.0) < lpk::cuda::sort_key(1e-30) &&
        lpk::cuda::sort_key(1e-30) < lpk::cuda::sort_key(HUGE_VAL));
  for (const AxisSizes& s : kSizes) {
    for (const bool symmetric : {false, true}) {
      for (const int bits : {2, 5, 16}) {
        for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
          check_affine(s, bits, symmetric, rounding, hard_doubles(count_of(s), 5, bits > 2, 3));
        }
      }
    }
  }
  const AxisSizes s{9, 6, 3};
  for (const Rounding rounding : kRoundings) {
    check_affine(s, 4, false, rounding, hard_doubles(count_of(s), 6, true, 3));
    check_affine(s, 1, false, rounding, hard_doubles(count_of(s), 6, true, 3));
    // First all values are below the smallest step, then none is finite.
    check_affine(s, 4, true, rounding, std::vector<double>(162, 1e-9));
    check_affine(s, 4, false, rounding, std::vector<double>(162, NAN));
  }
}

void check_codes(const NamedFormat& format, std::vector<float> x) {
  const lpk::Codec codec(format.ints.data());
  const auto count = static_cast<int64_t>(x.size());
  const lpk::PackArgs args{format.ints.data(), count, 1, count, 1, 1};
  std::vector<uint8_t> want(static_cast<size_t>(lpk::packed_bytes(args)));
  const int64_t refused = lpk::pack(args, x.data(), want.data());
  std::vector<uint32_t> words((want.size() + 3) / 4);
  int64_t missing = lpk::cuda::kNoneRefused;
  for (size_t w = words.size(); w > 0; --w)
    words[w - 1] =
        lpk::cuda::code_word(codec, x.data(), count, static_cast<int64_t>(w - 1), &missing);
  CHECK_SAME(missing, refused < 0 ? lpk::cuda::kNoneRefused : refused, std::string(format.name));
  if (refused >= 0) return;
  CHECK(std::memcmp(words.data(), want.data(), want.size()) == 0);
  lpk::unpack(args, want.data(), x.data());
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t code = lpk::cuda::field_at(want.data(), static_cast<int64_t>(want.size()),
                                              i * codec.bits(), codec.bits());
    CHECK_SAME(lpk::canonical_float(codec.decode(code)), x[i],
               text("%s, code %d", format.name, int(i)));
  }
}

void test_codes() {
  for (const auto& list : {narrow_float_formats(), wide_float_formats(), fixed_formats()}) {
    for (const NamedFormat& format : list) {
      const std::vector<double> values = values_of(format.ints);
      const size_t most = std::min<size_t>(values.size(), 3001);
      std::vector<float> x(values.begin(), values.begin() + static_cast<int64_t>(most));
      check_codes(format, x);
      for (const float strange : {HUGE_VALF, NAN, -0.0f, 0x1p-149f}) {
        x[most / 2] = strange;
        check_codes(format, x);
      }
      x[most / 3] = 0x1.23457p-3f;
      check_codes(format, x);
    }
  }
  // Every width is tried, and also streams that are shorter than a word.
  for (int bits = 1; bits <= 24; ++bits) {
    for (const size_t count : {1, 2, 31, 32, 33, 100}) {
      const NamedFormat format{"fixed", fixed_ints(bits, 3)};
      const std::vector<double> values = values_of(format.ints);
      std::vector<float> x;
      for (size_t i = 0; i < count; ++i)
        x.push_back(static_cast<float>(values[(i * 7919) % values.size()]));
      check_codes(format, x);
    }
  }
}

}  // namespace

void test_cuda_elements() {
  test_blocks();
  test_affine();
  test_codes();
}

}  // namespace lpk_test
