// pack and unpack: every width from 1 to 32 bits, and what has no code.
#include "check.h"
#include "cpu/elementwise/pack.h"
#include "groups.h"
#include "values.h"

namespace lpk_test {
namespace {

lpk::PackArgs arguments(const int64_t* format, int64_t count, int threads) {
  return {format, count, {}, threads};
}

// A bit string read the slow way: `bits` from bit `at` on, least significant first.
uint32_t field(const std::vector<uint8_t>& codes, int64_t at, int bits) {
  uint32_t value = 0;
  for (int i = 0; i < bits; ++i) {
    const int64_t bit = at + i;
    value |= static_cast<uint32_t>(codes[bit / 8] >> (bit % 8) & 1) << i;
  }
  return value;
}

std::vector<float> floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

void check_round_trip(const char* name, const FormatInts& f, int bits, std::vector<float> x,
                      int threads) {
  const auto count = static_cast<int64_t>(x.size());
  const lpk::PackArgs args = arguments(f.data(), count, threads);
  const int64_t bytes = lpk::packed_bytes(args);
  CHECK_SAME(bytes, (count * bits + 7) / 8, std::string(name));
  std::vector<uint8_t> codes(static_cast<size_t>(bytes), 0xaa);
  CHECK_SAME(lpk::pack(args, x.data(), codes.data()), int64_t{-1}, std::string(name));
  std::vector<float> back(x.size(), 77.0f);
  lpk::unpack(args, codes.data(), back.data());
  for (int64_t i = 0; i < count; ++i) {
    CHECK_SAME(back[i], x[i], text("%s, %d bits, element %d", name, bits, int(i)));
  }
  // Codes of neighbours do not leak, and surplus bits of the last byte are zero.
  for (int64_t i = 0; i < std::min<int64_t>(count, 3000); ++i) {
    std::vector<uint8_t> one(8, 0);
    lpk::pack(arguments(f.data(), 1, 1), &x[i], one.data());
    CHECK_SAME(field(codes, i * bits, bits), field(one, 0, bits), text("%s code %d", name, int(i)));
  }
  if (count * bits % 8 != 0) CHECK(codes.back() >> (count * bits % 8) == 0);
}

// More values than one thread packs at a time, in a shuffled order.
std::vector<float> many(const std::vector<float>& values, size_t count) {
  Source source(values.size());
  std::vector<float> result;
  while (result.size() < count) result.push_back(values[source.next() % values.size()]);
  return result;
}

void check_widths() {
  const FloatOptions unreserved{Specials::kNone};
  const FloatOptions one_exponent_bit{Specials::kNone, Overflow::kInfinity, true, 0};
  for (int bits = 1; bits <= 24; ++bits) {
    const std::vector<float> x = floats(values_of(fixed_ints(bits, 3)));
    check_round_trip("fixed", fixed_ints(bits, 3), bits, x, 1);
    check_round_trip("fixed", fixed_ints(bits, 3), bits, many(x, 20003), 2);
    check_round_trip("ufixed", fixed_ints(bits, -2, false, false), bits,
                     floats(values_of(fixed_ints(bits, -2, false, false))), 1);
  }
  for (int bits = 2; bits <= 32; ++bits) {
    const int exp_bits = bits < 4 ? 1 : std::max(std::min(8, bits / 2), bits - 24);
    const FormatInts f = float_ints(exp_bits, bits - 1 - exp_bits,
                                    exp_bits == 1  ? one_exponent_bit
                                    : exp_bits < 8 ? unreserved
                                                   : FloatOptions{});
    const std::vector<float> x = floats(values_of(f));
    check_round_trip("float", f, bits, x, 1);
    check_round_trip("float", f, bits, many(x, 20003), 3);
  }
}

// Sign, exponent and mantissa where the contract puts them.
uint32_t code_of(const FormatInts& f, float x) {
  std::vector<uint8_t> codes(8, 0);
  const int64_t refused = lpk::pack(arguments(f.data(), 1, 1), &x, codes.data());
  return refused == 0 ? 0xdeadbeef : field(codes, 0, 32);
}

float value_of(const FormatInts& f, uint32_t code) {
  uint8_t bytes[4];
  std::memcpy(bytes, &code, sizeof bytes);
  float x;
  lpk::unpack(arguments(f.data(), 1, 1), bytes, &x);
  return x;
}

void check_codes() {
  const float nan = lpk::float_of_bits(0x7fc00000u);
  const uint32_t none = 0xdeadbeef;
  const FormatInts e5m2 = float_ints(5, 2);
  const FormatInts e4m3fn = float_ints(4, 3, {Specials::kFn, Overflow::kNan});
  const FormatInts e2m1 = float_ints(2, 1, {Specials::kNone, Overflow::kSaturate});
  CHECK(code_of(e5m2, 1.0f) == 0x3c && code_of(e5m2, -1.25f) == 0xbd);
  CHECK(code_of(e5m2, -0.0f) == 0x80 && code_of(e5m2, 0x1p-16f) == 0x01);
  CHECK(code_of(e5m2, -HUGE_VALF) == 0xfc && code_of(e5m2, -nan) == 0x7e);
  CHECK(code_of(e4m3fn, 448.0f) == 0x7e && code_of(e4m3fn, -nan) == 0x7f);
  CHECK(code_of(e2m1, 6.0f) == 0x7 && code_of(e2m1, -0.5f) == 0x9);
  CHECK(code_of(fixed_ints(8, 4), -0.0625f) == 0xff);
  CHECK(code_of(float_ints(8, 23), -nan) == 0x7fc00000);
  CHECK(code_of(e4m3fn, HUGE_VALF) == none && code_of(e2m1, nan) == none);
  CHECK(code_of(e5m2, 1.1f) == none && code_of(fixed_ints(8, 4), 8.0f) == none);
  CHECK(code_of(float_ints(4, 0), nan) == none);
  CHECK(code_of(float_ints(4, 3, {Specials::kIeee, Overflow::kInfinity, false}), 0x1p-9f) == none);
  for (uint32_t code : {0x7du, 0x7eu, 0x7fu, 0xfdu, 0xffu}) {
    CHECK_SAME(value_of(e5m2, code), nan, text("e5m2 code 0x%x", code));
  }
  CHECK_SAME(value_of(e5m2, 0xfc), -HUGE_VALF, std::string("e5m2"));
  CHECK_SAME(value_of(e4m3fn, 0xff), nan, std::string("e4m3fn"));
}

void check_refusals() {
  std::vector<float> x(30000, 1.0f);
  std::vector<uint8_t> codes(x.size());
  const FormatInts e5m2 = float_ints(5, 2);
  x[29999] = 1.1f;
  x[12345] = 1.1f;
  CHECK_SAME(lpk::pack(arguments(e5m2.data(), 30000, 2), x.data(), codes.data()), int64_t{12345},
             std::string("first refused"));
}

void check_blocks() {
  constexpr int64_t kOuter = 2, kLength = 7, kInner = 3, kCount = kOuter * kLength * kInner;
  const FormatInts e2m1 = float_ints(2, 1, {Specials::kNone, Overflow::kSaturate});
  int64_t format[2 * lpk::kFormatInts] = {3, 4, 1};
  std::copy(e2m1.begin(), e2m1.end(), format + lpk::kFormatInts);
  const lpk::PackArgs args{format, kCount, {kOuter, kLength, kInner, 4, 1}, 2};
  // Two blocks a line, a scale of 8 bits each.
  const int64_t bytes = (kCount * 4 + kOuter * kInner * 2 * 8 + 7) / 8;
  CHECK_SAME(lpk::packed_bytes(args), bytes, std::string("block bytes"));
  Source source(5);
  std::vector<float> x(kCount), back(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    // Each block holds a 4 or a 6, so that its scale is the one it was made with.
    const bool first = i / kInner % kLength % 4 == 0;
    const float value = first ? 6.0f : static_cast<float>(source.between(-4, 4));
    x[i] = std::ldexp(value, static_cast<int>(i % kInner) * 30 - 30);
  }
  for (int64_t i = 0; i < 4; ++i) x[i * kInner] = lpk::float_of_bits(0x7fc00000u);
  std::vector<uint8_t> codes(static_cast<size_t>(bytes));
  CHECK_SAME(lpk::pack(args, x.data(), codes.data()), int64_t{-1}, std::string("block"));
  CHECK(codes[0] == 255);
  lpk::unpack(args, codes.data(), back.data());
  for (int64_t i = 0; i < kCount; ++i) CHECK_SAME(back[i], x[i], text("block element %d", int(i)));
  // Only a block that is NaN throughout has a code for one.
  x[5 * kInner] = -HUGE_VALF;
  x[6 * kInner] = lpk::float_of_bits(0x7fc00000u);
  CHECK_SAME(lpk::pack(args, x.data(), codes.data()), 5 * kInner, std::string("block, refused"));
}

// Tiles of 2 x 3 whose rows begin within a byte: scales in float32, then elements of four bits.
void check_apart() {
  constexpr int64_t kRows = 5, kCols = 7, kTiles = 9, kCount = kRows * kCols;
  const FormatInts e2m1 = float_ints(2, 1, {Specials::kNone, Overflow::kSaturate});
  int64_t format[2 * lpk::kFormatInts] = {3, 3, -1, 2, static_cast<int64_t>(lpk::ScaleKind::kFp32)};
  std::copy(e2m1.begin(), e2m1.end(), format + lpk::kFormatInts);
  float scales[kTiles], x[kCount], back[kCount];
  for (int i = 0; i < kTiles; ++i) scales[i] = std::ldexp(1.0f + 0.1f * i, 20 * i - 100);
  scales[4] = -lpk::float_of_bits(0x7fc00000u);
  Source source(6);
  for (float& value : x) value = static_cast<float>(source.between(-4, 4));
  std::vector<uint8_t> stream(sizeof scales + (kCount + 1) / 2);
  std::memcpy(stream.data(), scales, sizeof scales);
  lpk::pack(arguments(e2m1.data(), kCount, 1), x, stream.data() + sizeof scales);
  lpk::unpack({format, kCount, {1, kRows, kCols, 2, 3}, 2}, stream.data(), back);
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t tile = i / kCols / 2 * 3 + i % kCols / 3;
    const float want = tile == 4 ? lpk::float_of_bits(0x7fc00000u) : x[i] * scales[tile];
    CHECK_SAME(back[i], want, text("tiles, element %d", int(i)));
  }
}

}  // namespace

void test_pack() {
  check_widths();
  check_codes();
  check_refusals();
  check_blocks();
  check_apart();
}

}  // namespace lpk_test
