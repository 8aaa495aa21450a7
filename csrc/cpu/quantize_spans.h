// What the drivers of quantize share: spans of a tensor widened to doubles and written back.
#pragma once

#include <algorithm>
#include <cmath>

#include "../common/round.h"
#include "quantize.h"
#include "tile.h"

namespace lpk {

// Elements converted at a time: in and out as doubles they fit the first cache.
constexpr int64_t kSpan = 1024;

inline RoundBlock round_job(const QuantizeArgs& args, const int64_t* format) {
  RoundBlock job{};
  job.format = format;
  job.rounding = args.rounding;
  job.random_bits = args.random_bits;
  job.rng = args.rng;
  job.seed = args.seed;
  job.site = args.site;
  return job;
}

// Elements begin .. begin + count as doubles, and back.
inline void load_span(const QuantizeArgs& args, const Kernels& kernel, int64_t begin, int64_t count,
                      double* to) {
  if (args.x_type == ElementType::kFloat32) {
    kernel.widen(static_cast<const float*>(args.x) + begin, count, to);
  } else {
    widen(args.x, args.x_type, begin, count, to);
  }
}

inline void store_span(const QuantizeArgs& args, const Kernels& kernel, const double* from,
                       int64_t begin, int64_t count) {
  if (args.y_type == ElementType::kFloat32) {
    kernel.narrow(from, count, static_cast<float*>(args.y) + begin);
  } else {
    narrow(from, args.y_type, begin, count, args.y);
  }
}

// As doubles that the rounding rules can scale.
inline void load_moderated(const QuantizeArgs& args, const Kernels& kernel, int64_t begin,
                           int64_t count, double* to) {
  load_span(args, kernel, begin, count, to);
  if (args.x_type != ElementType::kFloat64) return;
  for (int64_t i = 0; i < count; ++i) to[i] = moderated(to[i]);
}

}  // namespace lpk
