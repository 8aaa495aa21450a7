// Affine formats: the range of every slice, then its elements coded on a line through it. Both
// passes are split over threads, a single slice too.
#include <mutex>
#include <vector>

#include "common/affine.h"
#include "cpu/drivers/parallel.h"
#include "quantize_spans.h"

namespace lpk {
namespace {

constexpr int64_t kGrain = 16 * kSpan;

// A tensor of `length` slices is `outer` rows of `length` runs of `inner` elements. Long runs share
// their slice's parameters; short ones are rows with parameters of their own for each element.
constexpr int64_t kLongRun = 64;

// The line that a slice is coded on, and the ends beyond which it overflows.
struct Grids {
  std::vector<double> lo, hi, step, top, low, high;
  explicit Grids(int64_t count)
      : lo(count, HUGE_VAL),
        hi(count, -HUGE_VAL),
        step(count),
        top(count),
        low(count),
        high(count) {}
};

struct Affine {
  const QuantizeArgs& args;
  const Kernels& kernel;
  bool by_element;     // parameters for each element of a row
  int64_t row;         // elements that the parameters repeat after
  int64_t parameters;  // slices, or elements of a row

  // Elements first .. first + count and where their parameters lie: not across the end of a run of
  // equal parameters, or of a row.
  template <class Body>
  void for_spans(int64_t begin, int64_t end, const Body& body) const {
    const int64_t run = by_element ? row : args.inner;
    for (int64_t i = begin; i < end;) {
      const int64_t at = i % run;
      const int64_t count = std::min({kSpan, run - at, end - i});
      body(i, count, by_element ? at : i / run % args.length);
      i += count;
    }
  }
};

// A finite value beyond the ends overflows; both are NaN where there is no line.
void make_grid(Grids& g, int64_t i, const AffineCodes& codes) {
  const AffineLine<double> line = affine_line(g.lo[i], g.hi[i], codes);
  const double largest = std::max(std::fabs(g.lo[i]), std::fabs(g.hi[i]));
  const bool any = g.lo[i] <= g.hi[i];
  g.low[i] = !any ? static_cast<double>(NAN) : codes.symmetric ? -largest : g.lo[i];
  g.high[i] = !any ? static_cast<double>(NAN) : codes.symmetric ? largest : g.hi[i];
  g.step[i] = line.step;
  g.top[i] = line.top;
  g.lo[i] = line.lo;
}

void find_ranges(const Affine& a, Grids& grids, int64_t grain) {
  std::mutex merging;
  parallel_ranges(a.args.count, grain, a.args.threads, [&](int64_t begin, int64_t end) {
    double values[kSpan];
    std::vector<double> lo(a.parameters, HUGE_VAL), hi(a.parameters, -HUGE_VAL);
    a.for_spans(begin, end, [&](int64_t i, int64_t count, int64_t parameter) {
      load_span(a.args, a.kernel, i, count, values);
      a.kernel.range(values, count, a.by_element, &lo[parameter], &hi[parameter]);
    });
    const std::lock_guard<std::mutex> lock(merging);
    for (int64_t i = 0; i < a.parameters; ++i) {
      grids.lo[i] = std::min(grids.lo[i], lo[i]);
      grids.hi[i] = std::max(grids.hi[i], hi[i]);
    }
  });
  if (!a.by_element) return;
  // Elements of a row to the slices they belong to.
  for (int64_t i = 0; i < a.parameters; i += a.args.inner) {
    const auto lo = grids.lo.begin() + i, hi = grids.hi.begin() + i;
    std::fill(lo, lo + a.args.inner, *std::min_element(lo, lo + a.args.inner));
    std::fill(hi, hi + a.args.inner, *std::max_element(hi, hi + a.args.inner));
  }
}

void take_limits(const Affine& a, Grids& grids) {
  const int64_t slices = a.args.length;
  for (int64_t i = 0; i < a.parameters; ++i) {
    const int64_t slice = a.by_element ? i / a.args.inner : i;
    grids.lo[i] = a.args.limits[slice];
    grids.hi[i] = a.args.limits[slices + slice];
  }
}

void code_elements(const Affine& a, const Grids& grids, const AffineCodes& codes) {
  parallel_ranges(a.args.count, kGrain, a.args.threads, [&](int64_t begin, int64_t end) {
    double values[kSpan];
    Counted counted(a.args);
    AffineSpan job{};
    job.block = round_job(a.args, kAffineIntegers);
    job.block.x = values;
    job.block.y = values;
    job.by_element = a.by_element;
    job.first = codes.first;
    job.last = codes.last;
    a.for_spans(begin, end, [&](int64_t i, int64_t count, int64_t parameter) {
      load_span(a.args, a.kernel, i, count, values);
      counted.saw(values, count);
      job.block.count = count;
      job.block.index = static_cast<uint64_t>(i);
      job.lo = &grids.lo[parameter];
      job.hi = &grids.hi[parameter];
      job.step = &grids.step[parameter];
      job.top = &grids.top[parameter];
      a.kernel.affine(job);
      counted.affine(job, &grids.low[parameter], &grids.high[parameter]);
      store_span(a.args, a.kernel, values, i, count);
    });
  });
}

}  // namespace

void quantize_affine(const QuantizeArgs& args) {
  const AffineCodes codes(args.format);
  const int64_t row = args.length * args.inner;
  const bool by_element = args.length > 1 && args.inner < kLongRun;
  const Affine a{args, kernels(), by_element, row, by_element ? row : args.length};
  Grids grids(a.parameters);
  // A piece has at least as many elements as it has parameters to merge.
  args.limits == nullptr ? find_ranges(a, grids, std::max(kGrain, 4 * a.parameters))
                         : take_limits(a, grids);
  const FloatEnvironment environment;
  for (int64_t i = 0; i < a.parameters; ++i) make_grid(grids, i, codes);
  code_elements(a, grids, codes);
}

}  // namespace lpk
