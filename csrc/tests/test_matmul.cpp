// matmul and accumulate_elements of the chosen instruction set against plain loops.
#include "check.h"
#include "cpu/drivers/gemm.h"
#include "groups.h"
#include "matmul_check.h"

namespace lpk_test {
namespace {

constexpr uint64_t kSeed = 0x112210f47de98115;

using Case = MatmulCase;

void check_matmul(const AccumulatorSpec& spec, const Case& c) {
  const auto [batch, m, k, n] = c.shape;
  check_matmul(spec, c, Source(static_cast<uint64_t>(m * 1000 + k * 10 + n)));
}

// Facts kept from one block of k must not mislead the next one. These kinds of operands change
// where the driver's second block begins.
enum class Stretch {
  kFine,    // few bits, sums of about 2^-14
  kFaint,   // sums of about 2^-115, where the format has such
  kTies,    // products in the middle between two values of 10 or 11 bits
  kTiny,    // sums at the bottom of e5m10 and e5m3
  kFloor,   // products of the smallest normal value of e5m3
  kHuge,    // sums beyond 2^16, then back
  kBroken,  // NaN and infinities now and then
  kZeros,   // of both signs
};
constexpr const char* kStretchNames[] = {"fine",  "faint", "ties",   "tiny",
                                         "floor", "huge",  "broken", "zeros"};
// Few steps come after the change, because later roundings would hide it.
constexpr int64_t kFirstLength = 256, kSecondLength = 3;

float stretch_operand(Stretch kind, bool left, Source& source) {
  const float sign = source.once_in(2) ? -1.0f : 1.0f;
  switch (kind) {
    case Stretch::kFine:
      return std::ldexp(sign * static_cast<float>(source.between(1, 7)), -11);
    case Stretch::kFaint:
      return std::ldexp(sign * static_cast<float>(source.between(1, 7)), -62);
    case Stretch::kTies:
      if (left) return std::ldexp(sign, source.between(0, 2));
      return sign *
             static_cast<float>(2 * source.between(512, source.once_in(2) ? 1023 : 2047) + 1);
    case Stretch::kTiny:
      return std::ldexp(sign * static_cast<float>(source.between(1, 3)), -9);
    case Stretch::kFloor:
      return std::ldexp(sign, -7);
    case Stretch::kHuge:
      return std::ldexp(sign, source.between(4, 9));
    case Stretch::kBroken:
      if (source.once_in(2000)) return source.once_in(2) ? NAN : sign * HUGE_VALF;
      return source.number(-2, 2);
    default:
      return sign * 0.0f;
  }
}

void check_stretches(const AccumulatorSpec& spec, Stretch first, Stretch second) {
  constexpr int64_t kM = 2, kN = 17, kLength = kFirstLength + kSecondLength;
  Source source(41);
  std::vector<float> a(kM * kLength), b(kLength * kN), got(kM * kN);
  for (int64_t k = 0; k < kLength; ++k) {
    const Stretch kind = k < kFirstLength ? first : second;
    for (int64_t i = 0; i < kM; ++i) a[i * kLength + k] = stretch_operand(kind, true, source);
    for (int64_t j = 0; j < kN; ++j) b[k * kN + j] = stretch_operand(kind, false, source);
  }
  const int64_t offset = 0;
  const lpk::MatmulArgs args{a.data(), b.data(), nullptr, got.data(), 1, kM, kN,
                             kLength,  &offset,  &offset, kLength,    1, kN, 1};
  lpk::matmul(args, {spec.ints().data()}, kSeed, 1);
  const PlainSum sum(spec, kSeed);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      const auto tap = [&](int64_t k) -> Tap { return {true, a[i * kLength + k], b[k * kN + j]}; };
      CHECK_SAME(got[i * kN + j],
                 sum.run(kLength, static_cast<uint64_t>(i), static_cast<uint64_t>(j), tap, nullptr),
                 text("%s, from %s to %s, element (%d, %d)", spec.name.c_str(),
                      kStretchNames[static_cast<int>(first)],
                      kStretchNames[static_cast<int>(second)], int(i), int(j)));
    }
  }
}

// Checks single products 1 x b, with every mantissa of float32, in the binades where a rule
// changes.
void check_mantissas(const FormatInts& ints, int exponent) {
  constexpr int64_t kCount = 1 << 23;
  const lpk::Format f = lpk::number_format(ints.data());
  const AccumulatorSpec spec{"mantissas", ints};
  std::vector<float> b(kCount), got(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    const float x = std::ldexp(static_cast<float>(kCount + i), exponent - 23);
    b[i] = i % 2 == 0 ? x : -x;
  }
  const float one = 1.0f;
  const int64_t offset = 0;
  const lpk::MatmulArgs args{&one, b.data(), nullptr, got.data(), 1, 1,      kCount,
                             1,    &offset,  &offset, 1,          1, kCount, 1};
  lpk::matmul(args, {spec.ints().data()}, kSeed, 1);
  for (int64_t i = 0; i < kCount; ++i) {
    const auto want =
        static_cast<float>(lpk::round_to_float<double>(b[i], f, Rounding::kNearestEven, 0.0));
    CHECK_SAME(got[i], want,
               text("mantissa %d, exponent %d, %d bits", int(i), exponent, f.man_bits));
  }
}

// Of an addition in the outer format.
double outer_threshold(const lpk::Accumulator& acc, uint32_t site, int64_t row, int64_t col,
                       uint64_t k) {
  if (acc.outer_rounding != Rounding::kStochastic) return 0;
  const uint32_t draw = lpk::random_draw(acc.rng, kSeed, site, static_cast<uint64_t>(row),
                                         static_cast<uint64_t>(col), k, acc.random_bits);
  return lpk::stochastic_threshold<double>(draw, acc.random_bits);
}

// total <- round(total + addend) in the outer format, drawn at a position of its own.
void check_accumulate(const AccumulatorSpec& spec, Data data, int64_t rows, int64_t cols) {
  Source source(7);
  const std::vector<float> addend = operands(data, source, rows * cols);
  const lpk::Accumulator acc = lpk::accumulator_from(spec.ints().data());
  const lpk::DrawKey first{kSeed, lpk::kSiteOuter, 3, 4, 5};
  std::vector<float> total;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double x = operand(data, source);
    total.push_back(
        static_cast<float>(lpk::round_to<double>(x, acc.outer, Rounding::kTowardZero, 0)));
  }
  std::vector<float> got = total;
  lpk::accumulate_elements(got.data(), addend.data(), rows, cols, spec.ints().data(), first, 2);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double threshold = outer_threshold(acc, lpk::kSiteOuter, 3 + i / cols, 4 + i % cols, 5);
    const float want = lpk::canonical_float(
        lpk::add_rounded<double>(total[i], addend[i], acc.outer, acc.outer_rounding, threshold));
    CHECK_SAME(got[i], want, spec.name + text(" accumulate, element %d", int(i)));
  }
}

// A sum of no products is its start, rounded to the outer format by a draw behind the bias's.
void check_start(const AccumulatorSpec& spec, Data data) {
  constexpr int64_t kM = 3, kN = 21;
  Source source(11);
  const std::vector<float> start = operands(data, source, kM * kN);
  std::vector<float> got(kM * kN);
  const float none = 0;
  const int64_t offset = 0;
  const lpk::MatmulArgs args{&none,   &none,   nullptr, got.data(), 1, kM, kN,          0,
                             &offset, &offset, 1,       1,          1, 1,  start.data()};
  lpk::matmul(args, {spec.ints().data()}, kSeed, 1);
  const lpk::Accumulator acc = lpk::accumulator_from(spec.ints().data());
  for (int64_t i = 0; i < kM * kN; ++i) {
    const double threshold = outer_threshold(acc, lpk::kSiteBias, i / kN, i % kN, 1);
    const double zero = std::copysign(0.0, start[i]);
    const float want = lpk::canonical_float(
        lpk::add_rounded<double>(zero, start[i], acc.outer, acc.outer_rounding, threshold));
    CHECK_SAME(got[i], want, spec.name + text(" start, element %d", int(i)));
  }
}

// `across`: the kind of data of the products that are larger than a block.
void check_accumulator(const AccumulatorSpec& spec, Data across) {
  const Layout rows = Layout::kRows, columns = Layout::kColumns, gaps = Layout::kGaps;
  for (Data data : kAllData) {
    for (const Case& c : {
             Case{{1, 1, 1, 1}, data, rows, rows, false, false, 1},
             Case{{1, 3, 0, 5}, data, rows, rows, true, false, 1},
             Case{{1, 5, 17, 3}, data, rows, columns, false, false, 1},
             Case{{1, 17, 9, 1}, data, gaps, rows, true, false, 1},
             Case{{3, 4, 33, 18}, data, columns, gaps, true, true, 2},
             Case{{2, 9, 65, 20}, data, rows, rows, false, false, 1},
         }) {
      check_matmul(spec, c);
    }
    check_accumulate(spec, data, 5, 7);
    check_start(spec, data);
  }
  check_matmul(spec, {{1, 67, 270, 18}, across, rows, rows, false, false, 2});
  check_matmul(spec, {{1, 5, 259, 131}, across, columns, columns, true, false, 2});
  check_matmul(spec, {{1, 150, 31, 3}, across, rows, rows, true, false, 2});
  check_accumulate(spec, across, 21, 1033);
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {
      const auto first = static_cast<Stretch>(from), then = static_cast<Stretch>(to);
      if (from != to) check_stretches(spec, first, then);
    }
  }
}

// Checks blocks and runs of blocks that end before, at and behind the sums' ends.
void check_operands(const AccumulatorSpec& spec, Data data) {
  const Layout rows = Layout::kRows, columns = Layout::kColumns, gaps = Layout::kGaps;
  check_matmul(spec, {{1, 1, 0, 3}, data, rows, rows, true, false, 1});
  check_matmul(spec, {{2, 3, 7, 5}, data, rows, columns, true, true, 1});
  check_matmul(spec, {{1, 17, 64, 33}, data, columns, rows, false, false, 2});
  check_matmul(spec, {{1, 9, 131, 48}, data, gaps, gaps, true, false, 2});
  check_matmul(spec, {{1, 1, 517, 1}, data, rows, rows, false, false, 1});
}

// A run of blocks that take turns has no bound: the driver's packed blocks grow with it.
void check_long_run() {
  const FormatInts fp16 = float_ints(5, 10);
  const AccumulatorSpec spec = AccumulatorSpec{"fp32 toward_zero, blocks of 256 by fp16, 8 in turn",
                                               float_ints(8, 23), Rounding::kTowardZero}
                                   .aligned(256, 25)
                                   .of_operands(fp16, fp16, 8);
  check_matmul(spec,
               {{1, 1, 2051, 250}, Data::kPlain, Layout::kRows, Layout::kRows, false, false, 1});
}

// Formats at the ends of float32, with products that lie in them.
void check_ends() {
  const Rounding zero = Rounding::kTowardZero, down = Rounding::kTowardNegative;
  const auto ieee = [](int exp_bits, int man_bits, int bias) {
    return float_ints(exp_bits, man_bits, {Specials::kIeee, Overflow::kInfinity, true, bias});
  };
  const FormatInts e2m1 = float_ints(2, 1), e2m2_b64 = ieee(2, 2, 64);
  const FormatInts e3m5_b142 = ieee(3, 5, 142), e2m4_bneg117 = ieee(2, 4, -117);
  using A = AccumulatorSpec;
  const struct {
    AccumulatorSpec spec;
    int exponent;
  } ends[] = {
      {A{"fixed24_f149", fixed_ints(24, 149)}, -66},
      {A{"fixed20_f140 toward_zero", fixed_ints(20, 140), zero}.chunked(7), -64},
      {A{"ufixed12_f128_wrap", fixed_ints(12, 128, true, false)}, -62},
      {A{"e3m5_b142", e3m5_b142}, -70},
      {A{"e3m5_b142 toward_negative", e3m5_b142, down}, -70},
      {A{"e6m9, product e3m5_b142", float_ints(6, 9)}.with_product(e3m5_b142), -70},
      {A{"e2m4_bneg117", e2m4_bneg117}, 58},
      {A{"e2m4_bneg117, blocks of 4 by e2m1", e2m4_bneg117}.aligned(4, 13).of_operands(e2m1, e2m1),
       0},
      {A{"e8m2_b142 toward_zero, blocks of 2 by e2m2_b64", ieee(8, 2, 142), zero}
           .aligned(2, 13)
           .of_operands(e2m2_b64, e2m2_b64),
       -63},
  };
  for (const auto& [spec, exponent] : ends) {
    for (const Data data : {Data::kPlain, Data::kShort}) {
      check_matmul(
          spec, {{1, 13, 40, 37}, data, Layout::kRows, Layout::kRows, false, false, 1, exponent});
    }
  }
}

}  // namespace

void test_matmul() {
  check_ends();
  check_long_run();
  for (const AccumulatorSpec& spec : operand_accumulators()) {
    for (const Data data : kAllData) {
      if (taken()) check_operands(spec, data);
    }
  }
  const bool apart = lpk::adds_apart();
  // The first turn is as on processors of the other kind, the second as on this one.
  for (bool adds : {!apart, apart}) {
    lpk::choose_adds_apart(adds);
    for (int man_bits : {1, 7, 10, 11}) check_mantissas(float_ints(6, man_bits), 3);
    for (int exponent : {-15, -14, -13}) check_mantissas(float_ints(5, 10), exponent);
    check_mantissas(float_ints(5, 10), -18);
    int turn = 0;
    for (const AccumulatorSpec& spec : accumulators()) {
      const Data across = kAllData[turn++ % 6];
      const bool apt = adds == apart || spec.rounding == Rounding::kNearestEven;
      if (apt && taken()) check_accumulator(spec, across);
    }
  }
}

}  // namespace lpk_test
