// Random products for the CUDA kernels, and what plain loops make of them.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "cuda/operands/pack_map.h"
#include "cuda/product/tiles.h"
#include "tests/check.h"
#include "tests/groups.h"
#include "tests/sums.h"

namespace lpk_test {

// Random operands and outputs. They are packed as a matrix product's, or lie behind tables as a
// convolution's, with absent taps and steps left out.
struct CudaProblem {
  int64_t count, m, n, k;
  bool gathers;
  bool bias;
};

class CudaSums {
 public:
  using Values = std::function<float(Source&)>;
  CudaSums(const CudaProblem& p, const AccumulatorSpec& spec, const Values& left,
           const Values& right, Source& source)
      : problem_(p), spec_(spec) {
    fill(p.m, left, source, &left_);
    fill(p.n, right, source, &right_);
    for (int64_t j = 0; j < p.n; ++j) bias_.push_back(right(source));
    out_.assign(static_cast<size_t>(p.count * p.m * p.n), 12345.0f);
    lpk::cuda::Sums& s = job.sums;
    s.left = operand(left_, p.m);
    s.right = operand(right_, p.n);
    s.out = out_.data();
    // Columns lie apart, rows side by side.
    s.batch = {nullptr, p.m * p.n};
    s.rows = {nullptr, 1};
    s.cols = {nullptr, p.m};
    s.row_batch = {nullptr, p.m};
    s.row_keys = s.col_keys = {nullptr, 1};
    s.col_batch = {nullptr, 0};
    s.bias = p.bias ? bias_.data() : nullptr;
    s.count = p.count, s.m = p.m, s.n = p.n, s.k = p.k;
    if (p.gathers) leave_out(source);
    job.acc = lpk::accumulator_from(spec.ints().data());
    job.seed = kSeed;
    lpk::cuda::begin_chunks(&job);
  }
  CudaSums(const CudaSums&) = delete;

  void check(const std::string& where) const {
    const CudaProblem& p = problem_;
    const PlainSum sum(spec_, kSeed);
    for (int64_t g = 0; g < p.count; ++g) {
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          const float want = sum.run(
              length_, static_cast<uint64_t>(g * p.m + i), static_cast<uint64_t>(j),
              [&](int64_t position) { return tap(g, i, j, position); },
              p.bias ? &bias_[j] : nullptr);
          CHECK_SAME(out_[g * p.m * p.n + j * p.m + i], want,
                     where + text(" (%d, %d, %d) %s, %s: element (%d, %d, %d)", int(p.m), int(p.k),
                                  int(p.n), p.gathers ? "gathered" : "packed", spec_.name.c_str(),
                                  int(g), int(i), int(j)));
        }
      }
    }
  }

  lpk::cuda::Job job{};

 private:
  static constexpr uint64_t kSeed = 0x112210f47de98115;

  struct Packed {
    std::vector<float> values;
    std::vector<int64_t> batch, lanes, steps;
    lpk::cuda::Facts facts{0, 0, 0, 0};
  };

  int64_t padded(int64_t lanes) const {
    return problem_.gathers ? lanes : lpk::cuda::ceil_div(lanes, lpk::cuda::kPad) * lpk::cuda::kPad;
  }

  void fill(int64_t lanes, const Values& value, Source& source, Packed* to) {
    const CudaProblem& p = problem_;
    const int64_t width = padded(lanes);
    to->values.assign(static_cast<size_t>(p.count * p.k * width), 0.0f);
    for (int64_t row = 0; row < p.count * p.k; ++row) {
      for (int64_t lane = 0; lane < lanes; ++lane) {
        float x = value(source);
        if (p.gathers && source.once_in(6)) {
          const uint32_t absent = lpk::cuda::kAbsent;
          std::memcpy(&x, &absent, sizeof x);
        }
        to->values[row * width + lane] = x;
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        to->facts = lpk::cuda::merged(to->facts, lpk::cuda::facts_of(bits));
      }
    }
    // Tables run backwards.
    for (int64_t g = 0; g < p.count; ++g) to->batch.push_back((p.count - 1 - g) * p.k * width);
    for (int64_t l = 0; l < lanes; ++l) to->lanes.push_back(lanes - 1 - l);
    for (int64_t k = 0; k < p.k; ++k) to->steps.push_back((p.k - 1 - k) * width);
  }

  lpk::cuda::Operand operand(const Packed& v, int64_t lanes) const {
    const int64_t width = padded(lanes);
    lpk::cuda::Operand o{};
    o.values = v.values.data();
    o.facts = &v.facts;
    o.absent = problem_.gathers;
    if (problem_.gathers) {
      o.batch = {v.batch.data(), 0};
      o.lanes = {v.lanes.data(), 0};
      o.steps = {v.steps.data(), 0};
    } else {
      o.batch = {nullptr, problem_.k * width};
      o.lanes = {nullptr, 1};
      o.steps = {nullptr, width};
    }
    return o;
  }
  // Some positions have no step; chunks begin where their first step lies.
  void leave_out(Source& source) {
    length_ = 0;
    for (int64_t k = 0; k < problem_.k; ++k) {
      length_ += source.once_in(3) ? source.between(1, 9) : 0;
      positions_.push_back(length_++);
    }
    length_ += source.between(0, 9);
    job.sums.positions = positions_.data();
    if (spec_.chunk == 0) return;
    const int64_t chunks = lpk::cuda::ceil_div(length_, spec_.chunk);
    for (int64_t c = 0; c <= chunks; ++c) {
      starts_.push_back(std::lower_bound(positions_.begin(), positions_.end(), c * spec_.chunk) -
                        positions_.begin());
    }
    job.sums.starts = starts_.data();
    job.sums.chunks = chunks;
  }

  Tap tap(int64_t g, int64_t i, int64_t j, int64_t position) const {
    int64_t step = position;
    if (problem_.gathers) {
      const auto at = std::lower_bound(positions_.begin(), positions_.end(), position);
      if (at == positions_.end() || *at != position) return {false, 0, 0};
      step = at - positions_.begin();
    }
    const lpk::cuda::Sums& s = job.sums;
    const float a = s.left.values[s.left.batch[g] + s.left.lanes[i] + s.left.steps[step]];
    const float b = s.right.values[s.right.batch[g] + s.right.lanes[j] + s.right.steps[step]];
    return {!absent(a) && !absent(b), a, b};
  }
  static bool absent(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits == lpk::cuda::kAbsent;
  }

  CudaProblem problem_;
  AccumulatorSpec spec_;
  Packed left_, right_;
  std::vector<float> bias_, out_;
  std::vector<int64_t> positions_, starts_;
  int64_t length_ = problem_.k;
};

// Numbers of some significant bits and exponents.
inline CudaSums::Values numbers(int bits, int low, int high) {
  return [=](Source& source) {
    const int most = (1 << bits) - 1;
    const auto x = static_cast<float>(source.between(-most, most));
    return std::ldexp(x, source.between(low, high) - bits);
  };
}
// The same with now and then one of another kind.
inline CudaSums::Values specials_in(CudaSums::Values plain) {
  return [plain](Source& source) { return source.once_in(40) ? special(source) : plain(source); };
}

}  // namespace lpk_test
