// matmul_events: its sums against plain loops, and its counts in sums done by hand.
// tests/backends/cpu/test_events.py tests that every event is the reference's.
#include <numeric>

#include "check.h"
#include "cpu/sums/events/events.h"
#include "groups.h"
#include "sums.h"

namespace lpk_test {
namespace {

constexpr uint64_t kSeed = 0x112210f47de98115;

struct Result {
  lpk::EventCounts counts;
  std::vector<float> sums;
};

// a (m, k) and b (k, n) in rows, one after the other.
Result events(const AccumulatorSpec& spec, const std::vector<float>& a, const std::vector<float>& b,
              int64_t m, int64_t k, int64_t n, int threads) {
  Result r{{}, std::vector<float>(static_cast<size_t>(m * n), 12345.0f)};
  std::vector<int64_t> row_id(static_cast<size_t>(m));
  std::iota(row_id.begin(), row_id.end(), 0);
  const auto ints = spec.ints();
  const lpk::EventArgs args{a.data(), b.data(), r.sums.data(), m,           n,    k, k, 1,
                            n,        1,        row_id.data(), ints.data(), kSeed};
  r.counts = lpk::matmul_events(args, threads);
  return r;
}

void check_sums(const AccumulatorSpec& spec, int64_t m, int64_t k, int64_t n, int threads) {
  Source source(static_cast<uint64_t>(m * 1000 + k * 10 + n));
  std::vector<float> a, b;
  for (int64_t i = 0; i < m * k; ++i) a.push_back(source.number(-3, 3));
  for (int64_t i = 0; i < k * n; ++i) b.push_back(source.number(-3, 3));
  const Result got = events(spec, a, b, m, k, n, threads);
  const PlainSum sum(spec, kSeed);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const auto tap = [&](int64_t l) -> Tap { return {true, a[i * k + l], b[l * n + j]}; };
      const float want =
          sum.run(k, static_cast<uint64_t>(i), static_cast<uint64_t>(j), tap, nullptr);
      CHECK_SAME(got.sums[i * n + j], want,
                 text("%s, (%d, %d, %d): element (%d, %d)", spec.name.c_str(), int(m), int(k),
                      int(n), int(i), int(j)));
    }
  }
}

// Ones in e5m2: the sum stops at 8, to which 1 adds nothing (9 is a tie, and 8 is even).
void check_by_hand() {
  const int64_t k = 12;
  const std::vector<float> ones(static_cast<size_t>(k), 1.0f);
  const AccumulatorSpec spec{"e5m2", float_ints(5, 2)};
  const Result one = events(spec, ones, ones, 1, k, 1, 1);
  CHECK_SAME(one.sums[0], 8.0f, std::string("ones"));
  CHECK_SAME(one.counts.added, k, std::string("ones"));
  CHECK_SAME(one.counts.swamped, int64_t{4}, std::string("ones"));
  CHECK_SAME(one.counts.overflowed, int64_t{0}, std::string("ones"));

  // Chunks of 4 are exact; 8 + 4 = 12 is in e5m2.
  const Result four = events(spec.chunked(4), ones, ones, 1, k, 1, 1);
  CHECK_SAME(four.sums[0], 12.0f, std::string("chunks"));
  CHECK_SAME(four.counts.added_chunks, int64_t{3}, std::string("chunks"));
  CHECK_SAME(four.counts.swamped_chunks, int64_t{0}, std::string("chunks"));

  // The largest value of e3m2 is 14: 14 + 1 = 15 is a tie whose even neighbour is 16.
  std::vector<float> parts(static_cast<size_t>(k), 0.0f);
  parts[0] = 14;
  parts[5] = 1;
  const Result over = events(AccumulatorSpec{"e3m2", float_ints(3, 2)}, parts, ones, 1, k, 1, 1);
  CHECK_SAME(over.counts.overflowed, int64_t{1}, std::string("overflow"));
  CHECK_SAME(over.counts.added, int64_t{2}, std::string("overflow"));
}

}  // namespace

void test_events() {
  check_by_hand();
  for (const AccumulatorSpec& spec : accumulators()) {
    // The additions of other orders are not counted.
    if (spec.order != lpk::Order::kSequential || spec.block > 0 || !taken()) continue;
    check_sums(spec, 3, 29, 11, 1);
    check_sums(spec, 9, 7, 5, 2);
  }
  check_sums(accumulators().front(), 2, 1100, 3, 1);
}

}  // namespace lpk_test
