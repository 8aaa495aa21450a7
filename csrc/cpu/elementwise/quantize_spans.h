// Spans of a tensor, widened to doubles and written back, for all drivers of quantize.
#pragma once

#include <algorithm>
#include <cstring>

#include "block_kernels.h"
#include "common/round.h"
#include "count.h"
#include "cpu/drivers/tile.h"
#include "quantize.h"

namespace lpk {

// Elements converted at a time: in and out as doubles they fit the first cache.
constexpr int64_t kSpan = 1024;

inline RoundBlock round_job(const QuantizeArgs& args, const int64_t* format) {
  RoundBlock job{};
  static_cast<ElementRounding&>(job) = args;
  job.format = format;
  return job;
}

// Elements begin .. begin + count, at most kSpan, as doubles, and back. float16 and bfloat16 go by
// way of float32, whose vectors reach beyond the last element.
inline void load_span(const QuantizeArgs& args, const Kernels& kernel, int64_t begin, int64_t count,
                      double* to) {
  const char* x = static_cast<const char*>(args.x) + begin * element_bytes(args.x_type);
  if (args.x_type == ElementType::kFloat64) {
    std::memcpy(to, x, static_cast<size_t>(count) * sizeof *to);
  } else if (args.x_type == ElementType::kFloat32) {
    kernel.widen(reinterpret_cast<const float*>(x), count, to);
  } else {
    uint32_t words[kSpan + kPanel];
    kernel.families.blocks->widen_words(x, args.x_type, count, words);
    kernel.widen(reinterpret_cast<const float*>(words), count, to);
  }
}

// Every NaN becomes the canonical one of the type, 0x7fc00000 in float32. y's type holds the
// values.
inline void store_span(const QuantizeArgs& args, const Kernels& kernel, const double* from,
                       int64_t begin, int64_t count) {
  if (args.y == nullptr) return;
  if (args.y_type == ElementType::kFloat64) {
    double* y = static_cast<double*>(args.y) + begin;
    for (int64_t i = 0; i < count; ++i) y[i] = from[i] == from[i] ? from[i] : __builtin_nan("");
  } else if (args.y_type == ElementType::kFloat32) {
    kernel.narrow(from, count, static_cast<float*>(args.y) + begin);
  } else {
    uint32_t words[kSpan + kPanel] = {};
    ElementBlock job{};
    job.y = args.y;
    job.y_type = args.y_type;
    kernel.narrow(from, count, reinterpret_cast<float*>(words));
    kernel.families.counts->write(words, job, begin, count);
  }
}

// Loads values as doubles that the rounding rules can scale.
inline void load_moderated(const QuantizeArgs& args, const Kernels& kernel, int64_t begin,
                           int64_t count, double* to) {
  load_span(args, kernel, begin, count, to);
  if (args.x_type != ElementType::kFloat64) return;
  for (int64_t i = 0; i < count; ++i) to[i] = moderated(to[i]);
}

// The counts of a piece of a tensor, handed over when it is done; does nothing where nothing is
// counted.
class Counted {
 public:
  explicit Counted(const QuantizeArgs& args)
      : to_(args.counts),
        by_(to_ == nullptr ? nullptr : kernels().families.counts),
        tally_(to_ != nullptr && args.histogram) {}
  Counted(const Counted&) = delete;
  ~Counted() {
    if (to_ != nullptr) tally_.add_to(to_);
  }

  // Values of the tensor, which are rounded next.
  void saw(const double* x, int64_t count) {
    if (to_ != nullptr) std::copy(x, x + count, seen_);
  }
  // kernel.round on at most kSpan values, in place.
  void round(const Kernels& kernel, const RoundBlock& job) {
    if (to_ == nullptr) return kernel.round(job);
    std::copy(job.x, job.x + job.count, scaled_);
    kernel.round(job);
    by_->span({job, seen_, scaled_, job.y}, &tally_);
  }
  // Words of a float format and their results, with zeros behind them: as doubles where one may
  // have overflowed.
  void words(const ElementBlock& of, const Format& f) {
    const auto* x = static_cast<const uint32_t*>(of.x);
    const auto* y = static_cast<const uint32_t*>(of.y);
    if (by_->words(x, y, of.count, bits_of_float(static_cast<float>(f.max)), &tally_)) return;
    RoundBlock job{};
    static_cast<ElementRounding&>(job) = of;
    double results[kSpan];
    for (int64_t i = 0; i < of.count; i += kSpan) {
      job.count = std::min(kSpan, of.count - i);
      job.index = of.index + static_cast<uint64_t>(i);
      for (int64_t e = 0; e < job.count; ++e) {
        seen_[e] = static_cast<double>(float_of_bits(x[i + e]));
        results[e] = static_cast<double>(float_of_bits(y[i + e]));
      }
      by_->span({job, seen_, seen_, results}, &tally_);
    }
  }
  // After a rounding of `scaled` to codes, whose values are `results`.
  void rounded(const RoundBlock& job, const double* scaled, const double* results) {
    if (to_ != nullptr) by_->span({job, seen_, scaled, results}, &tally_);
  }
  // After kernel.affine, low and high as `by_element` of the job says.
  void affine(const AffineSpan& job, const double* low, const double* high) {
    if (to_ == nullptr) return;
    by_->affine({seen_, job.block.y, job.block.count, job.by_element, low, high}, &tally_);
  }

 private:
  int64_t* to_;
  const CountKernels* by_;
  Tally tally_;
  double seen_[kSpan], scaled_[kSpan];
};

}  // namespace lpk
