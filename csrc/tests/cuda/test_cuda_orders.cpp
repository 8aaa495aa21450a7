// Trees, Kahan's sums and aligned blocks of csrc/cuda on the host, thread by thread, against plain
// loops.
#include <string>

#include "cuda/tiles/aligned_tile.h"
#include "cuda_block.h"
#include "cuda_run.h"
#include "tests/check.h"
#include "tests/groups.h"

namespace lpk_test {
namespace {

using lpk::cuda::BlockStages;
using lpk::cuda::Job;

// Stages have every step of a block in order, measured once and added once. Blocks and chunks go by
// position.
void check_block_stages(int64_t length, int64_t chunk, int block,
                        const std::vector<int64_t>& positions) {
  Job job{};
  job.sums.k = length;
  job.acc.chunk = chunk;
  job.acc.block = block;
  std::vector<int64_t> starts;
  if (!positions.empty()) {
    job.sums.positions = positions.data();
    const int64_t chunks = chunk == 0 ? 0 : lpk::cuda::ceil_div(positions.back() + 1, chunk);
    for (int64_t c = 0; c <= chunks; ++c)
      starts.push_back(std::lower_bound(positions.begin(), positions.end(), c * chunk) -
                       positions.begin());
    job.sums.starts = starts.data();
    job.sums.chunks = chunks;
  }
  lpk::cuda::begin_chunks(&job);
  const auto position = [&](int64_t step) { return positions.empty() ? step : positions[step]; };
  int64_t measured = 0, added = 0, closed = 0;
  for (BlockStages at(job); at.left(); at = at.following()) {
    for (int i = 0; i < at.count(); ++i) {
      const int64_t in_sum = position(at.first() + i) - at.chunk() * chunk;
      const int64_t first = in_sum / block * block + at.chunk() * chunk;
      CHECK(first == at.key());
      if (chunk > 0) CHECK(in_sum >= 0 && in_sum < chunk);
      if (at.measures()) CHECK(at.first() + i == measured++);
      if (at.adds()) CHECK(at.first() + i == added++);
    }
    CHECK(at.count() <= lpk::cuda::kDepth && (at.measures() || measured > added - 1));
    if (at.adds() && at.ends()) CHECK(measured == added);
    closed += at.closes();
  }
  CHECK(measured == length && added == length && closed == job.chunks);
}

void test_block_stages() {
  Source source(3);
  for (int64_t length : {0, 1, 8, 9, 40, 100}) {
    for (int64_t chunk : {0, 1, 7, 20, 64, 200}) {
      for (int block : {1, 3, 4, 8, 9, 16, 31, 256}) {
        check_block_stages(length, chunk, block, {});
        std::vector<int64_t> positions;
        int64_t at = 0;
        for (int64_t k = 0; k < length; ++k) {
          at += source.once_in(3) ? source.between(1, 40) : 0;
          positions.push_back(at++);
        }
        if (length > 0) check_block_stages(length, chunk, block, positions);
      }
    }
  }
}

CudaSums::Values values_of(Data data) {
  return [data](Source& source) { return operand(data, source); };
}

std::vector<AccumulatorSpec> ordered_accumulators() {
  std::vector<AccumulatorSpec> all;
  for (const AccumulatorSpec& spec : accumulators()) {
    if (!lpk::accumulator_from(spec.ints().data()).has_running_sum()) all.push_back(spec);
  }
  const AccumulatorSpec bf16{"bf16", float_ints(8, 7)};
  for (const int64_t block : {4, 8, 11, 16}) {
    all.push_back(bf16.aligned(block, 12));
    all.back().name = text("bf16, blocks of %d", int(block));
  }
  return all;
}

void test_orders() {
  Source source(41);
  for (const AccumulatorSpec& spec : ordered_accumulators()) {
    for (const Data data : kAllData) {
      for (const CudaProblem& p :
           {CudaProblem{1, 5, 9, 75, false, true}, CudaProblem{2, 33, 3, 29, true, false}}) {
        CudaSums sums(p, spec, values_of(data), values_of(data), source);
        run_product(&sums.job);
        sums.check(std::string("ordered, ") + kDataNames[static_cast<int>(data)]);
      }
    }
    for (const bool gathers : {false, true}) {
      for (const int64_t length : {0, 1, 2, 300}) {
        CudaSums sums({1, 3, 4, length, gathers, true}, spec, values_of(Data::kShort),
                      values_of(Data::kSpecials), source);
        run_product(&sums.job);
        sums.check(text("ordered, %d products", int(length)));
      }
    }
  }
}

}  // namespace

void test_cuda_orders() {
  test_block_stages();
  test_orders();
}

}  // namespace lpk_test
