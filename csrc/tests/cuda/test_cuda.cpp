// The parts of csrc/cuda that run without a GPU: its index maps, and its tiles, thread by thread,
// against plain loops.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda_block.h"
#include "cuda_run.h"
#include "tests/check.h"
#include "tests/groups.h"

namespace lpk_test {
namespace {

using lpk::cuda::BlockMap;
using lpk::cuda::kDepth;

template <int kSide, int kGroup>
void check_map() {
  using Map = BlockMap<kSide, kGroup>;
  std::set<std::pair<int, int>> outputs;
  for (int t = 0; t < Map::kThreads; ++t) {
    for (int i = 0; i < kSide; ++i) {
      for (int j = 0; j < kSide; ++j) outputs.insert({Map::row(t, i), Map::col(t, j)});
    }
  }
  CHECK(outputs.size() == static_cast<size_t>(Map::kLanes * Map::kLanes));
  CHECK(outputs.rbegin()->first == Map::kLanes - 1);
  for (const int width : {1, 2, 4}) {
    if (Map::kFetched % width != 0) continue;
    std::set<std::pair<int, int>> fetched;
    for (int t = 0; t < Map::kThreads; ++t) {
      for (int e = 0; e < Map::kFetched; ++e)
        fetched.insert({Map::fetched_step(t), Map::fetched_lane(t, e, width)});
    }
    CHECK(fetched.size() == static_cast<size_t>(Map::kLanes * kDepth));
    CHECK(fetched.rbegin()->first == kDepth - 1 && fetched.rbegin()->second == Map::kLanes - 1);
  }
}

// Stages have every step once, in order, in the chunk that the step belongs to.
void check_stages(int64_t length, int64_t chunk) {
  lpk::cuda::Job job{};
  job.sums.k = length;
  job.acc.chunk = chunk;
  lpk::cuda::begin_chunks(&job);
  int64_t step = 0, closed = 0;
  for (lpk::cuda::Stages at(job); at.left(); at = at.following()) {
    CHECK(at.first() == step && at.count() >= 0 && at.count() <= kDepth);
    if (chunk > 0) CHECK(at.count() > 0 && at.first() / chunk == at.chunk());
    step += at.count();
    if (chunk > 0) CHECK(at.closes() == (step == length || step % chunk == 0));
    closed += at.closes();
  }
  CHECK(step == length);
  CHECK(closed == (chunk == 0 ? 1 : (length + chunk - 1) / chunk));
  step = 0;
  for (lpk::cuda::PlainStages at(job); at.left(); at = at.following()) {
    CHECK(at.first() == step && at.count() > 0 && at.count() <= kDepth && !at.closes());
    step += at.count();
  }
  CHECK(step == length);
}

void check_places() {
  lpk::cuda::Sums s{};
  s.count = 3, s.m = 200, s.n = 70;
  const int64_t tiles = lpk::cuda::tile_count(s, 64);
  CHECK(tiles == 3 * 4 * 2);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const lpk::cuda::Place at = lpk::cuda::place_of(s, 64, tile);
    CHECK(at.matrix < s.count && at.row < s.m && at.col < s.n);
    CHECK(lpk::cuda::tile_at(s, 64, at) == tile);
    CHECK(lpk::cuda::tile_at(s, 128, at) < lpk::cuda::tile_count(s, 128));
  }
  const lpk::cuda::Place last = lpk::cuda::place_of(s, 128, 5);
  CHECK(last.matrix == 2 && last.row == 128 && last.col == 0);
}

// Compares what facts say with the values one by one.
void check_facts(Data data) {
  Source source(5);
  for (int n = 0; n < 300; ++n) {
    const float x = operand(data, source);
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const lpk::cuda::Facts f = lpk::cuda::facts_of(bits);
    if (x == 0) {
      CHECK((f.mantissas | f.highest | f.lowest | f.last_place) == 0);
    } else if (std::fpclassify(x) == FP_NORMAL) {
      const int last = 512 - static_cast<int>(f.last_place) - 150;
      CHECK(std::fmod(x, std::ldexp(1.0, last)) == 0 &&
            std::fmod(x, std::ldexp(1.0, last + 1)) != 0);
      CHECK(static_cast<int>(f.highest) - 127 == std::ilogb(x));
      CHECK(255 - static_cast<int>(f.lowest) - 127 == std::ilogb(x));
    } else {
      CHECK(f.highest == 255 || f.lowest == 255);
    }
  }
}

CudaSums::Values values_of(Data data) {
  return [data](Source& source) { return operand(data, source); };
}

void test_exact_tiles() {
  Source source(77);
  for (const AccumulatorSpec& spec : accumulators()) {
    if (!lpk::accumulator_from(spec.ints().data()).has_running_sum()) continue;
    for (const Data data : kAllData) {
      for (const CudaProblem& p :
           {CudaProblem{1, 5, 19, 67, false, true}, CudaProblem{2, 33, 3, 21, true, false}}) {
        CudaSums sums(p, spec, values_of(data), values_of(data), source);
        run_exact(sums.job);
        sums.check(std::string("exact, ") + kDataNames[static_cast<int>(data)]);
      }
    }
  }
}

}  // namespace

void test_cuda() {
  check_map<8, 8>();
  check_map<8, 4>();
  check_map<8, 2>();
  check_map<8, 1>();
  check_map<4, 2>();
  check_map<2, 2>();
  for (int64_t length : {0, 1, 7, 8, 9, 64, 100}) {
    for (int64_t chunk : {0, 1, 3, 8, 9, 64, 200}) check_stages(length, chunk);
  }
  check_places();
  for (const Data data : kAllData) check_facts(data);
  test_exact_tiles();
}

}  // namespace lpk_test
