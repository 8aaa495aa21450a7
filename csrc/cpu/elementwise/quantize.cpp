#include "quantize.h"

#include <algorithm>
#include <cstring>

#include "block_kernels.h"
#include "cpu/drivers/parallel.h"
#include "quantize_spans.h"

namespace lpk {

Tally::Tally(bool with_histogram) : histogram(with_histogram) {
  if (histogram) std::memset(bins, 0, sizeof bins);
}

void Tally::add_to(int64_t* to) const {
  const auto add = [to](int at, int64_t count) {
    if (count != 0) __atomic_fetch_add(to + at, count, __ATOMIC_RELAXED);
  };
  for (int i = 0; i < kCounts; ++i) add(i, counts[i]);
  for (int e = 0; histogram && e < kBins; ++e) {
    int64_t count = 0;
    for (const auto& histogram_bins : bins) count += histogram_bins[e];
    add(kCounts + e, count);
  }
}

namespace {

// Elements a thread takes at a time.
constexpr int64_t kGrain = 64 * kSpan;
// Fewer elements are rounded sooner than another thread is woken.
constexpr int64_t kWorthThreads = 2 * kGrain;

ElementBlock element_job(const QuantizeArgs& args, int64_t begin, int64_t end) {
  ElementBlock job{};
  static_cast<ElementRounding&>(job) = args;
  job.x = static_cast<const char*>(args.x) + begin * element_bytes(args.x_type);
  if (args.y != nullptr) job.y = static_cast<char*>(args.y) + begin * element_bytes(args.y_type);
  job.x_type = args.x_type;
  job.y_type = args.y_type;
  job.count = end - begin;
  job.index = static_cast<uint64_t>(begin);
  return job;
}

// Every format and type, by way of spans of doubles.
void round_through_doubles(const QuantizeArgs& args, const Kernels& kernel, int64_t begin,
                           int64_t end) {
  double values[kSpan];
  Counted counted(args);
  RoundBlock job = round_job(args, args.format);
  job.x = values;
  job.y = values;
  for (int64_t i = begin; i < end; i += kSpan) {
    job.count = std::min(kSpan, end - i);
    job.index = static_cast<uint64_t>(i);
    load_moderated(args, kernel, i, job.count, values);
    counted.saw(values, job.count);
    counted.round(kernel, job);
    store_span(args, kernel, values, i, job.count);
  }
}

// Does what Kernels::round_elements does, and counts: a span of results is written once it has been
// compared with its values.
bool count_elements(const QuantizeArgs& args, const Kernels& kernel, const ElementBlock& job) {
  constexpr int64_t kMost = 4 * kSpan;
  const Format f = number_format(job.format);
  if (f.kind != Kind::kFloat || f.is_unsigned || job.x_type == ElementType::kFloat64) return false;
  alignas(64) uint32_t values[kMost + kPanel], results[kMost + kPanel];
  Counted counted(args);
  ElementBlock part = job;
  part.x_type = part.y_type = ElementType::kFloat32;
  part.y = results;
  part.streamed = false;
  for (int64_t i = 0; i < job.count; i += kMost) {
    const int64_t n = part.count = std::min(kMost, job.count - i);
    const char* x = static_cast<const char*>(job.x) + i * element_bytes(job.x_type);
    part.x = values;
    if (job.x_type != ElementType::kFloat32) {
      kernel.families.blocks->widen_words(x, job.x_type, n, values);
    } else if (n % kPanel == 0) {
      part.x = x;
    } else {
      std::memcpy(values, x, static_cast<size_t>(n) * sizeof *values);
    }
    part.index = job.index + static_cast<uint64_t>(i);
    if (!kernel.round_elements(part)) return false;
    std::memset(values + n, 0, kPanel * sizeof *values);
    std::memset(results + n, 0, kPanel * sizeof *results);
    counted.words(part, f);
    if (job.y != nullptr) kernel.families.counts->write(results, job, i, n);
  }
  return true;
}

}  // namespace

void quantize_elements(const QuantizeArgs& args) {
  const Kernels& kernel = kernels();
  const int64_t bytes = args.count * (element_bytes(args.x_type) + element_bytes(args.y_type));
  const bool streamed = bytes >= args.stream_bytes;
  const int threads = args.count < kWorthThreads ? 1 : args.threads;
  parallel_ranges(args.count, kGrain, threads, [&](int64_t begin, int64_t end) {
    ElementBlock job = element_job(args, begin, end);
    job.streamed = streamed;
    const bool done =
        args.counts == nullptr ? kernel.round_elements(job) : count_elements(args, kernel, job);
    if (!done) round_through_doubles(args, kernel, begin, end);
  });
}

void round_in_place(const Kernels& kernel, const int64_t* quantizer, float* x, int64_t count) {
  constexpr int64_t kMost = int64_t{1} << 16;
  if (quantizer == nullptr) return;
  for (int64_t i = 0; i < count; i += kMost) {
    QuantizeArgs args{};
    args.x = args.y = x + i;
    args.format = quantizer;
    args.rounding = static_cast<Rounding>(quantizer[kFormatInts]);
    const int64_t part = std::min(kMost, count - i);
    if (!kernel.round_elements(element_job(args, 0, part)))
      round_through_doubles(args, kernel, 0, part);
  }
}

}  // namespace lpk
