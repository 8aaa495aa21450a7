// Reads products as lines of integers, writes for each the tier that csrc/cuda/product/plan.h
// chooses (-1: no certified kernel may be asked for), the bytes of its scratch memory, and how its
// sums are shared out by the tiers that has_shapes does not name and by those that it names: rows,
// columns, tiles, splits, passes, chunks of a split. tests/backends/planning/test_cuda_host.py says
// what the integers are.
#include <cstdio>
#include <vector>

#include "cuda/product/job.h"

using namespace lpk::cuda;

int main() {
  long count;
  while (std::scanf("%ld", &count) == 1) {
    std::vector<int64_t> ints(count);
    for (int64_t& x : ints) {
      long read = 0;
      if (std::scanf("%ld", &read) != 1) return 1;
      x = read;
    }
    const int64_t* next = ints.data();
    Facts facts[2];
    for (Facts& f : facts) {
      // width, lowest, highest, as range_of takes them apart.
      f.mantissas = next[0] == 1 ? 0 : 1u << (24 - next[0]);
      f.last_place = static_cast<uint32_t>(362 - next[1]);
      f.highest = static_cast<uint32_t>(next[2] + 126);
      f.lowest = 1;
      next += 3;
    }
    Job job{};
    const int64_t position = 0;
    job.sums.left.facts = &facts[0];
    job.sums.right.facts = &facts[1];
    job.sums.count = next[0];
    job.sums.m = next[1];
    job.sums.n = next[2];
    job.sums.k = next[3];
    job.sums.positions = next[4] != 0 ? &position : nullptr;
    job.sums.left.size = next[5];
    job.sums.right.size = next[6];
    job.sums.starts = next[4] != 0 ? &position : nullptr;
    job.sums.chunks = next[7];
    job.processors = static_cast<int32_t>(next[8]);
    job.most_parts = kMostParts;
    job.acc = lpk::accumulator_from(next + 9);
    begin_chunks(&job);
    if (job.acc.order == lpk::Order::kNative) job.acc.rounding = lpk::Rounding::kNearestEven;
    job.fast_doubles = true;
    const bool may = may_certify(job.acc);
    begin_cuts(&job);
    std::printf("%d %ld", may ? static_cast<int>(plan_for(job).tier) : -1,
                static_cast<long>(may ? scratch_size(job) : 0));
    for (const Cut& cut : {job.others, job.shaped}) {
      std::printf(" %d %d %ld %d %d %d", cut.rows, cut.cols, static_cast<long>(cut.tiles),
                  cut.splits, cut.passes, cut.chunks);
    }
    std::printf("\n");
  }
}
