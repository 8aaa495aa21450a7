// Updates: the kernels of the processor against updates of one element after the other, at sizes
// around vectors and spans.
#include <vector>

#include "check.h"
#include "cpu/elementwise/update.h"
#include "groups.h"
#include "values.h"

namespace lpk_test {
namespace {

using Quantizer = std::vector<int64_t>;

// The integers are kind, exponent and mantissa bits, bias, IEEE, subnormals, infinity; then the
// rounding.
Quantizer quantizer(int exp_bits, int man_bits, Rounding rounding) {
  const int64_t bias = (int64_t{1} << (exp_bits - 1)) - 1;
  return {0, exp_bits, man_bits, bias, 0, 1, 0, 0, static_cast<int64_t>(rounding), 32, 0, 0};
}

struct Values {
  std::vector<uint8_t> bytes[lpk::kPlaces];
  float step = 3;
  int64_t counts[2] = {0, 0};
};

struct Case {
  const char* name;
  Quantizer quantizers[lpk::kPlaces];
  int lies[lpk::kPlaces];
};

std::vector<int64_t> rounding_of(const Case& c) {
  std::vector<int64_t> ints;
  for (int place = 0; place < lpk::kPlaces; ++place) {
    const bool plain = c.quantizers[place][2] == 23;
    ints.push_back(place + 1);
    ints.push_back(plain ? 0 : 1);
    ints.insert(ints.end(), c.quantizers[place].begin(), c.quantizers[place].end());
  }
  return ints;
}

void check_case(const Case& c, int64_t count, int64_t origin, bool adam) {
  const std::vector<int64_t> rounding = rounding_of(c);
  const double numbers[] = {adam ? 1.0 : 0.0, 0.01, 0.1, 0.9, 0.99, 1e-8, 0.0, 1.0};
  const int64_t seed = 77;
  const float scale = 3.0f;
  lpk::UpdateArgs args{};
  std::copy(c.lies, c.lies + lpk::kPlaces, args.lies);
  args.rounding = rounding.data();
  args.numbers = numbers;
  args.seed = &seed;
  args.scale = &scale;
  args.threads = 2;
  args.count = 1;
  Values sides[2];
  Source source(static_cast<uint64_t>(count));
  for (int place = 0; place < lpk::kPlaces; ++place) {
    // Any bytes are values: infinities and NaN are among them. There are no bytes beyond the
    // values'.
    std::vector<uint8_t>& bytes = sides[0].bytes[place];
    bytes.resize(static_cast<size_t>(count * args.bytes(place)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(source.next());
    sides[1].bytes[place] = bytes;
  }
  for (int side = 0; side < 2; ++side) {
    Values& v = sides[side];
    const lpk::UpdateParameter parameter{v.bytes[0].data(),
                                         v.bytes[4].data(),
                                         v.bytes[1].data(),
                                         {v.bytes[2].data(), v.bytes[3].data()},
                                         &v.step,
                                         v.counts,
                                         count,
                                         5,
                                         origin};
    args.parameters = &parameter;
    if (side == 0) {
      lpk::update(args);
      continue;
    }
    const lpk::UpdateJob job(args, parameter);
    const lpk::StepConstants constants = job.constants();
    uint64_t seeds[lpk::kPlaces];
    for (int place = 0; place < lpk::kPlaces; ++place) seeds[place] = job.seed_of(place);
    for (int64_t i = 0; i < count; ++i)
      lpk::update_element(job, constants, seeds, i, &v.counts[0], &v.counts[1]);
  }
  CHECK_SAME(sides[0].step, 4.0f, std::string(c.name));
  for (int i = 0; i < 2; ++i)
    CHECK_SAME(sides[0].counts[i], sides[1].counts[i], std::string(c.name));
  for (int place = 0; place < lpk::kPlaces; ++place) {
    for (size_t i = 0; i < sides[0].bytes[place].size(); ++i) {
      CHECK_SAME(sides[0].bytes[place][i], sides[1].bytes[place][i],
                 text("%s, %d elements, place %d, byte %d", c.name, int(count), place, int(i)));
    }
  }
}

}  // namespace

void test_update() {
  const Quantizer fp32 = quantizer(8, 23, Rounding::kNearestEven);
  const Quantizer bf16 = quantizer(8, 7, Rounding::kNearestEven);
  const Quantizer e5m2 = quantizer(5, 2, Rounding::kNearestEven);
  const Quantizer drawn = quantizer(6, 9, Rounding::kStochastic);
  const Quantizer bytes = quantizer(5, 2, Rounding::kStochastic);
  constexpr int kC = lpk::kCodes;
  const Case cases[] = {
      {"float32", {fp32, fp32, fp32, fp32, bf16}, {0, 0, 0, 0, 2}},
      {"bfloat16", {fp32, bf16, bf16, bf16, bf16}, {2, 2, 2, 2, 2}},
      {"codes", {e5m2, drawn, e5m2, e5m2, fp32}, {1, kC, kC, kC, 0}},
      {"draws", {bytes, drawn, bytes, drawn, bytes}, {0, kC, kC, kC, 1}},
  };
  for (const Case& c : cases) {
    for (const int64_t count : {1, 15, 16, 17, 511, 513, 1100, 70001}) {
      // Parts of a tensor may begin at any element, past a border of row keys too.
      for (const int64_t origin : {int64_t{0}, int64_t{3}, (int64_t{1} << 34) - 518}) {
        check_case(c, count, origin, true);
        check_case(c, count, origin, false);
      }
    }
  }
}

}  // namespace lpk_test
