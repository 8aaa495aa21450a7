// A piece of a tensor in spans of words, which a first look brings into the nearest cache for the
// next one.
#pragma once

#include "quantize_kernel.h"

namespace lpk {
namespace {

// Words that are taken in turn from several pages, as in quantize_kernel.h.
constexpr int64_t kTurnedWords = kPages * kPageWords;

// Runs body(words, count, begin) over the job's elements as words, those of other types by spans.
template <class V, class Body>
void for_words(const ElementBlock& job, const Body& body) {
  if (job.x_type == ElementType::kFloat32) {
    const auto* x = static_cast<const uint32_t*>(job.x);
    for (int64_t i = 0; i < job.count; i += kTurnedWords)
      body(x + i, std::min(kTurnedWords, job.count - i), i);
    return;
  }
  alignas(64) uint32_t words[kWordSpan];
  for (int64_t i = 0; i < job.count; i += kWordSpan) {
    const int64_t n = std::min(kWordSpan, job.count - i);
    widen_span<V>(job, i, n, words);
    body(words, n, i);
  }
}

}  // namespace
}  // namespace lpk
