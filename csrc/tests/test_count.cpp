// Counts of quantize_elements against counts of one element at a time. The elements are words of
// chosen exponent fields, counted alone and while they are rounded.
// tests/backends/cpu/test_count_kernels.py compares what each mode and format counts.
#include <cmath>
#include <vector>

#include "check.h"
#include "common/count.h"
#include "cpu/elementwise/quantize.h"
#include "groups.h"
#include "specs.h"
#include "values.h"

namespace lpk_test {
namespace {

using Counts = std::vector<int64_t>;
constexpr size_t kLength = lpk::kCounts + lpk::kBins;

uint32_t with_field(Source& source, int low, int high) {
  const uint32_t field = static_cast<uint32_t>(source.between(low, high));
  return (static_cast<uint32_t>(source.next() >> 32) & 0x807fffffu) | field << 23;
}

float value_of(uint32_t word) {
  float x;
  std::memcpy(&x, &word, sizeof x);
  return x;
}

Counts run(const std::vector<uint32_t>& x, uint32_t* y, int threads) {
  const FormatInts format = float_ints(5, 10);
  Counts counts(kLength);
  lpk::QuantizeArgs args{};
  args.x = x.data();
  args.y = y;
  args.count = static_cast<int64_t>(x.size());
  args.format = format.data();
  args.threads = threads;
  args.stream_bytes = INT64_MAX;
  args.counts = counts.data();
  args.histogram = true;
  lpk::quantize_elements(args);
  return counts;
}

Counts expected(const std::vector<uint32_t>& x) {
  Counts counts(kLength);
  for (const uint32_t word : x) {
    const float a = std::fabs(value_of(word));
    ++counts[lpk::kCounts + (word >> 23 & 0xff)];
    if (a == 0.0f) {
      ++counts[lpk::kZeros];
    } else if (!std::isfinite(a)) {
      ++counts[lpk::kNonfinite];
    } else {
      counts[lpk::kOverflows] += a >= 65520.0f;
      counts[lpk::kUnderflows] += a <= 0x1p-25f;
    }
  }
  return counts;
}

void check(const std::vector<uint32_t>& x, const std::string& name) {
  const Counts want = expected(x);
  std::vector<uint32_t> y(x.size());
  for (const int threads : {1, 2}) {
    for (uint32_t* to : {static_cast<uint32_t*>(nullptr), y.data()}) {
      const Counts got = run(x, to, threads);
      for (size_t i = 0; i < kLength; ++i)
        CHECK_SAME(got[i], want[i],
                   text("%s, %d threads, count %d", name.c_str(), threads, int(i)));
    }
  }
}

}  // namespace

void test_count() {
  Source source(11);
  for (const int count : {1, 255, 257, 4097, 2 * 65536 + 77}) {
    for (const int low : {0, 1, 90, 110, 224}) {
      std::vector<uint32_t> x(static_cast<size_t>(count));
      for (uint32_t& word : x) word = with_field(source, low, low + 31);
      check(x, text("%d of fields %d on", count, low));
      for (uint32_t& word : x) {
        if (source.once_in(40)) word = with_field(source, 0, 255);
        if (source.once_in(3)) word &= 0x80000000u;
      }
      check(x, text("%d of fields %d on, others and zeros", count, low));
    }
  }
  // Spans that have no exponent in common, and all of them.
  std::vector<uint32_t> x(10 * 4096);
  for (size_t i = 0; i < x.size(); ++i) {
    const int low = static_cast<int>(i / 4096) * 25;
    x[i] = with_field(source, i < 8 * 4096 ? low : 0, i < 8 * 4096 ? low + 20 : 255);
  }
  check(x, "windows that move");
}

}  // namespace lpk_test
