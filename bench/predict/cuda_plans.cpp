// Says how csrc/cuda makes products: bench/predict/cuda_plans.py writes a line of integers for each
// to the standard input, and reads a line of integers for each from the standard output.
#include <cstdio>
#include <vector>

#include "cuda/product/job.h"

namespace lpk::cuda {
namespace {

// Kernels that a product starts between packed operands and its result: multiply in
// csrc/cuda/product/multiply.cu starts them.
int launches(const Job& job) {
  const Accumulator& acc = job.acc;
  const bool tensor = may_use_tensor_cores(acc);
  int shaped = tensor ? 1 : 0, others = 1;
  if (hardware_format(acc.fmt) != Hardware::kFloat && acc.rounding == Rounding::kNearestEven &&
      has_float_tiers(acc)) {
    (acc.chunk == 0 ? others : shaped) += 1;
  }
  const int passes = most_of(job.others.passes, job.shaped.passes);
  return tensor + shaped * job.shaped.passes + others * job.others.passes + passes;
}

int beside(const Cut& cut, const TileShapes& shapes) {
  for (int n = 0; n < shapes.count; ++n) {
    if (shapes.at[n].rows == cut.rows && shapes.at[n].cols == cut.cols) return shapes.at[n].beside;
  }
  return 0;
}

// The operand's facts, as packing would find them in values that are never special.
Facts facts_of(const int64_t* range) {
  Facts facts{};
  facts.mantissas = range[0] == 1 ? 0 : 1u << (24 - range[0]);
  facts.last_place = static_cast<uint32_t>(362 - range[1]);
  facts.highest = static_cast<uint32_t>(range[2] + 126);
  facts.lowest = 1;
  return facts;
}

void answer(const int64_t* next) {
  const Facts facts[2] = {facts_of(next), facts_of(next + 3)};
  next += 6;
  Job job{};
  const int64_t position = 0;
  job.sums.left.facts = const_cast<Facts*>(&facts[0]);
  job.sums.right.facts = const_cast<Facts*>(&facts[1]);
  job.sums.count = next[0];
  job.sums.m = next[1];
  job.sums.n = next[2];
  job.sums.k = next[3];
  job.sums.positions = job.sums.starts = next[4] != 0 ? &position : nullptr;
  job.sums.left.size = next[5];
  job.sums.right.size = next[6];
  job.sums.chunks = next[7];
  job.processors = static_cast<int32_t>(next[8]);
  job.fast_doubles = next[9] != 0;
  job.most_parts = kMostParts;
  job.acc = job_accumulator(next + 10);
  begin_chunks(&job);
  const bool in_float = outer_way(job.acc) != OuterWay::kNone;
  const bool tensor = may_use_tensor_cores(job.acc);
  const bool running = job.acc.has_running_sum(), certified = running && may_certify(job.acc);
  const int tier = certified ? static_cast<int>(plan_for(job).tier) : running ? 0 : -1;
  const int64_t scratch = scratch_size(job);
  if (certified) begin_cuts(&job);
  const bool shaped = has_shapes(static_cast<Tier>(tier));
  const Cut& cut = shaped ? job.shaped : job.others;
  const TileShapes& shapes = !shaped  ? other_shapes(job.acc)
                             : tensor ? kAllTensorShapes
                                      : kAllShapes;
  std::printf("%d %d %d %ld %d %d %d %ld %d %d %d %d\n", tier, in_float, tensor,
              static_cast<long>(scratch), certified ? launches(job) : 0, cut.rows, cut.cols,
              static_cast<long>(cut.tiles), cut.splits, cut.passes, cut.chunks,
              beside(cut, shapes));
  std::fflush(stdout);
}

}  // namespace
}  // namespace lpk::cuda

int main() {
  long count;
  while (std::scanf("%ld", &count) == 1) {
    std::vector<int64_t> ints(count);
    for (int64_t& x : ints) {
      long read = 0;
      if (std::scanf("%ld", &read) != 1) return 1;
      x = read;
    }
    lpk::cuda::answer(ints.data());
  }
}
