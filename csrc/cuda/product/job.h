// A product's arguments as the job of its kernels, and its scratch memory: host code.
#pragma once

#include <stdexcept>
#include <string>

#include "cuda/tiles/tree_tile.h"
#include "cut.h"
#include "done.h"

namespace lpk::cuda {

// The accumulator of a job. Native chunks are float32 sums to nearest: the given rounding is that
// of the outer sums alone.
inline Accumulator job_accumulator(const int64_t* integers) {
  Accumulator acc = accumulator_from(integers);
  if (acc.order == Order::kNative) acc.rounding = Rounding::kNearestEven;
  return acc;
}

// Throws std::invalid_argument for what no kernel can take.
inline Job job_from(const MultiplyArgs& args) {
  Job job{};
  job.sums = args.sums;
  job.acc = job_accumulator(args.accumulator);
  job.result = fused_rule(args.result);
  job.seed = args.draws.seed;
  job.device_seed = args.draws.device_seed;
  job.role = args.draws.role;
  if (args.sums.k > kMostSteps) {
    throw std::invalid_argument("the CUDA kernels take sums of at most 2^31 - 16 products, got " +
                                std::to_string(args.sums.k));
  }
  job.most_parts = kMostParts;
  begin_chunks(&job);
  return job;
}

// A job with the members that scratch_size reads, and no others.
inline Job job_for_scratch(const Sums& sums, const int64_t* accumulator, int32_t processors) {
  Job job{};
  job.sums = sums;
  job.acc = job_accumulator(accumulator);
  job.processors = processors;
  job.most_parts = kMostParts;
  begin_chunks(&job);
  return job;
}

// Tiles of every shape are for sums to nearest in chunks that close in float32.
inline bool closes_in_float(const Accumulator& acc) {
  return acc.chunk > 0 && acc.rounding == Rounding::kNearestEven &&
         outer_way(acc) != OuterWay::kNone;
}

// Whether tiers in float32, proved and watched, may be asked for and have tiles of every shape.
inline bool may_shape(const Accumulator& acc) {
  return closes_in_float(acc) && acc.order == Order::kSequential && acc.fmt.man_bits <= 21;
}

// The shapes of the tiles of the other tiers that may be asked for, but for tensor cores. The tiers
// that clip, convert or have arithmetic of 16 bits have square tiles alone. Where one of them may
// be asked for, this holds for all tiers, because a product starts one kernel for them.
inline const TileShapes& other_shapes(const Accumulator& acc) {
  const Format& f = acc.fmt;
  if (!closes_in_float(acc)) return kSquares;
  if (hardware_format(f) == Hardware::kFloat) return kAllFloatShapes;
  const bool clips = f.overflow == Overflow::kSaturate && f.man_bits <= kMostClipped;
  return clips || hardware_format(f) != Hardware::kNone ? kSquares : kAllRareShapes;
}

// Makes a sum without chunks one chunk. An outer sum in the same format leaves this chunk as it is,
// except for -0: certified tiles flag zeros that may be -0, and the exact kernel makes the sum
// without chunks.
inline Accumulator as_one_chunk(const Sums& s, const Accumulator& acc) {
  Accumulator one = acc;
  one.chunk = s.k;
  one.outer = acc.fmt;
  return one;
}

inline void begin_cuts(Job* job) {
  const auto cut = [&](const TileShapes& shapes) {
    return cut_of(job->sums, job->acc.chunk > 0 ? job->chunks : 1, job->processors, job->most_parts,
                  shapes);
  };
  // The kernels of sums without chunks have only square tiles, which the tiers that has_shapes
  // names need most.
  const Accumulator one = as_one_chunk(job->sums, job->acc);
  const bool flags_zeros = hardware_format(job->acc.fmt) == Hardware::kNone;
  if (job->acc.chunk == 0 && flags_zeros && may_shape(one) && !is_square(cut(kAllShapes))) {
    job->acc = one;
    job->whole = true;
    begin_chunks(job);
  }
  job->others = cut(other_shapes(job->acc));
  job->shaped = may_use_tensor_cores(job->acc) ? cut(kAllTensorShapes)
                : may_shape(job->acc)          ? cut(kAllShapes)
                                               : job->others;
  for (const Cut* one : {&job->others, &job->shaped}) {
    if (one->tiles * one->splits > INT32_MAX) {
      throw std::invalid_argument("the CUDA kernels make products of at most 2^31 - 1 tiles, got " +
                                  std::to_string(one->tiles * one->splits));
    }
  }
  const bool splits = job->others.splits > 1 || job->shaped.splits > 1;
  job->counted = splits ? tile_count(job->sums, exact_side(job->acc)) : 0;
}

// The job of the last kernel.
inline Job last_job(const Job& job) {
  Job last = job;
  if (job.whole) last.acc.chunk = 0;
  return last;
}

// The job of a kernel that shares the product out as `cut` says.
inline Job with_cut(const Job& job, const Cut& cut) {
  Job mine = job;
  mine.cut = cut;
  mine.parts = cut.splits > 1 ? job.outer : nullptr;
  return mine;
}

struct Scratch {
  int64_t arrived, redo, outer, left, right, bytes;
};

// The scratch memory has the plan first. Then follow, where sums are split, a count for every exact
// tile; a byte for every piece of certified tiles; the outer sums of chunks, or the sums of the
// chunks that wait; and the operands as tensor cores take them.
inline Scratch scratch_of(const Job& job) {
  const Sums& s = job.sums;
  const Accumulator& acc = job.acc;
  constexpr int64_t kLine = 256;
  const auto behind = [](int64_t at, int64_t bytes) { return at + ceil_div(bytes, kLine) * kLine; };
  const auto sums_of = [&](const Cut& cut, bool outer) {
    if (cut.splits > 1) return s.count * s.m * s.n * cut.splits * cut.chunks;
    if (!outer || acc.chunk == 0) return int64_t{0};
    return (cut.tiles < kMostBlocks ? cut.tiles : kMostBlocks) * cut.rows * cut.cols;
  };
  const auto more = [](int64_t a, int64_t b) { return a > b ? a : b; };
  const bool tensor = may_use_tensor_cores(acc);
  // Tiles that are not square have outer sums in registers, except for tiles of tensor cores.
  const int64_t sums = more(sums_of(job.others, is_square(job.others)),
                            sums_of(job.shaped, tensor || is_square(job.shaped)));
  const int64_t half = tensor ? static_cast<int64_t>(sizeof(uint16_t)) : 0;
  Scratch places{};
  places.arrived = kLine;
  places.redo = behind(places.arrived, job.counted * static_cast<int64_t>(sizeof(uint32_t)));
  places.outer = behind(places.redo, more(job.others.tiles * job.others.splits,
                                          job.shaped.tiles * job.shaped.splits));
  places.left = behind(places.outer, sums * static_cast<int64_t>(sizeof(float)));
  places.right = behind(places.left, s.left.size * half);
  places.bytes = behind(places.right, s.right.size * half);
  return places;
}

// The bytes of scratch memory: 0 where only exact kernels run, except for trees, whose nodes wait
// there. Of the job only its sizes, accumulator and processors are read.
inline int64_t scratch_size(Job job) {
  if (job.acc.order == Order::kPairwise)
    return tree_floats(job.sums, job.acc.chunk) * static_cast<int64_t>(sizeof(float));
  if (!may_certify(job.acc)) return 0;
  begin_cuts(&job);
  return scratch_of(job).bytes;
}

// Lays out `scratch`. The job gets no plan where only exact kernels run.
inline void begin_scratch(Job* job, void* scratch) {
  if (job->acc.order == Order::kPairwise) {
    job->waiting = static_cast<float*>(scratch);
    job->levels = tree_levels(job->sums, job->acc.chunk);
  }
  // No certificate knows where sums start.
  if (job->sums.initial != nullptr) return;
  if (!may_certify(job->acc) || job->chunks == 0) return;
  begin_cuts(job);
  const Scratch places = scratch_of(*job);
  char* at = static_cast<char*>(scratch);
  job->plan = reinterpret_cast<Plan*>(at);
  job->arrived = reinterpret_cast<uint32_t*>(at + places.arrived);
  job->redo = reinterpret_cast<uint8_t*>(at + places.redo);
  job->outer = reinterpret_cast<float*>(at + places.outer);
  job->left_halves = reinterpret_cast<uint16_t*>(at + places.left);
  job->right_halves = reinterpret_cast<uint16_t*>(at + places.right);
}

}  // namespace lpk::cuda
