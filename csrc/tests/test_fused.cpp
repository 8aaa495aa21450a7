// matmul with quantizers of its own, against matmul with the same quantizers as passes around it.
#include "check.h"
#include "cpu/drivers/gemm.h"
#include "cpu/elementwise/quantize.h"
#include "groups.h"
#include "sums.h"

namespace lpk_test {
namespace {

constexpr uint64_t kSeed = 0x3c6ef372fe94f82b;

// The integers of a format, then the rounding.
using QuantizerInts = std::array<int64_t, lpk::kFormatInts + 1>;

QuantizerInts quantizer(const NamedFormat& format, Rounding rounding) {
  QuantizerInts ints;
  std::copy(format.ints.begin(), format.ints.end(), ints.begin());
  ints.back() = static_cast<int64_t>(rounding);
  return ints;
}

void round_all(const QuantizerInts& ints, std::vector<float>& x) {
  lpk::QuantizeArgs args{};
  args.x = args.y = x.data();
  args.count = static_cast<int64_t>(x.size());
  args.format = ints.data();
  args.rounding = ints.back();
  args.threads = 1;
  args.stream_bytes = INT64_MAX;
  lpk::quantize_elements(args);
}

struct Operands {
  int64_t m, k, n;
  std::vector<float> a, b, bias;

  std::vector<float> product(const lpk::Arithmetic& arithmetic) const {
    std::vector<float> c(static_cast<size_t>(m * n), 12345.0f);
    const int64_t offset = 0;
    const lpk::MatmulArgs args{a.data(), b.data(), bias.data(), c.data(), 1, m, n,
                               k,        &offset,  &offset,     k,        1, n, 1};
    lpk::matmul(args, arithmetic, kSeed, 1);
    return c;
  }
};

void check_fused(const QuantizerInts& left, const QuantizerInts& right, const QuantizerInts& result,
                 const AccumulatorSpec& spec, Data data, int64_t m, int64_t k, int64_t n,
                 const std::string& name) {
  Source source(static_cast<uint64_t>(m * 1000 + k * 10 + n));
  Operands operands_{m,
                     k,
                     n,
                     operands(data, source, m * k),
                     operands(data, source, k * n),
                     operands(data, source, n)};
  const auto accumulator = spec.ints();
  const std::vector<float> got =
      operands_.product({accumulator.data(), left.data(), right.data(), result.data()});
  round_all(left, operands_.a);
  round_all(right, operands_.b);
  std::vector<float> want = operands_.product({accumulator.data()});
  round_all(result, want);
  for (size_t i = 0; i < want.size(); ++i) {
    CHECK_SAME(got[i], want[i],
               text("%s, %s, (%d, %d, %d), %s data, element %d", name.c_str(), spec.name.c_str(),
                    int(m), int(k), int(n), kDataNames[static_cast<int>(data)], int(i)));
  }
}

}  // namespace

void test_fused() {
  std::vector<NamedFormat> formats = narrow_float_formats();
  for (const auto& more : {wide_float_formats(), fixed_formats()})
    formats.insert(formats.end(), more.begin(), more.end());
  const std::vector<AccumulatorSpec> specs = accumulators();
  size_t turn = 0;
  for (const NamedFormat& format : formats) {
    for (Rounding rounding : kRoundings) {
      if (rounding == Rounding::kStochastic) continue;
      // Another quantizer for the other operand, and one for the result.
      const QuantizerInts one = quantizer(format, rounding);
      ++turn;
      const QuantizerInts other = quantizer(formats[turn % formats.size()], kRoundings[turn % 6]);
      const std::string name = std::string(format.name) + " " + name_of(rounding);
      for (Data data : kAllData) {
        const AccumulatorSpec& spec = specs[turn++ % specs.size()];
        check_fused(one, other, one, spec, data, 5, 19, 18, name);
        check_fused(other, one, other, spec, data, 18, 7, 3, name);
      }
    }
  }
  // These sizes go across the blocks of k, of rows and of lanes.
  const QuantizerInts e5m2 = quantizer(formats[0], Rounding::kNearestEven);
  const QuantizerInts e4m3 = quantizer(formats[2], Rounding::kToOdd);
  check_fused(e5m2, e4m3, e4m3, specs[1], Data::kPlain, 101, 270, 261, "blocks");
  check_fused(e4m3, e5m2, e5m2, specs[1], Data::kPlain, 300, 270, 2, "blocks");
}

}  // namespace lpk_test
