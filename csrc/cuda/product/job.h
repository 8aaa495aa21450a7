// A product's arguments as the job of its kernels, and its scratch memory: host code.
#pragma once

#include <stdexcept>
#include <string>

#include "done.h"

namespace lpk::cuda {

// Throws std::invalid_argument for what no kernel can take.
inline Job job_from(const MultiplyArgs& args) {
  Job job{};
  job.sums = args.sums;
  job.acc = accumulator_from(args.accumulator);
  job.result = fused_rule(args.result);
  job.seed = args.draws.seed;
  job.device_seed = args.draws.device_seed;
  job.role = args.draws.role;
  if (job.acc.order != Order::kSequential || job.acc.block != 0) {
    throw std::invalid_argument(
        "the CUDA kernels make sums in sequence and in chunks; those of Triton have the others");
  }
  if (args.sums.k > kMostSteps) {
    throw std::invalid_argument("the CUDA kernels take sums of at most 2^31 - 16 products, got " +
                                std::to_string(args.sums.k));
  }
  begin_chunks(&job);
  return job;
}

struct Scratch {
  int64_t redo, outer, bytes;
};

// The scratch memory has the plan first. Then follow a byte for every certified tile, and the outer
// sums of chunks.
inline Scratch scratch_of(const Sums& s, const Accumulator& acc) {
  constexpr int64_t kLine = 256;
  const auto behind = [](int64_t at, int64_t bytes) { return at + ceil_div(bytes, kLine) * kLine; };
  const int64_t tiles = tile_count(s, kTile);
  const int64_t blocks = acc.chunk == 0 ? 0 : tiles < kMostBlocks ? tiles : kMostBlocks;
  Scratch places{};
  places.redo = kLine;
  places.outer = behind(places.redo, tiles);
  places.bytes = behind(places.outer, blocks * kTile * kTile * static_cast<int64_t>(sizeof(float)));
  return places;
}

// The bytes of scratch memory: 0 where only exact kernels run.
inline int64_t scratch_size(const Sums& sums, const Accumulator& acc) {
  return may_certify(acc) ? scratch_of(sums, acc).bytes : 0;
}

// Lays out `scratch`. The job gets no plan where only exact kernels run.
inline void begin_scratch(Job* job, void* scratch) {
  // No certificate knows where sums start.
  if (job->sums.initial != nullptr) return;
  if (!may_certify(job->acc) || job->chunks == 0) return;
  job->tiles = tile_count(job->sums, kTile);
  if (job->tiles > INT32_MAX) {
    throw std::invalid_argument("the CUDA kernels make products of at most 2^31 - 1 tiles, got " +
                                std::to_string(job->tiles));
  }
  const Scratch places = scratch_of(job->sums, job->acc);
  char* at = static_cast<char*>(scratch);
  job->plan = reinterpret_cast<Plan*>(at);
  job->redo = reinterpret_cast<uint8_t*>(at + places.redo);
  job->outer = reinterpret_cast<float*>(at + places.outer);
}

}  // namespace lpk::cuda
