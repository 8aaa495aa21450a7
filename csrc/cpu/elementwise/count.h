// Counts of what rounding does (common/count.h): gathered by a thread for a piece of a tensor, then
// added to the tensor's, in any order of the threads.
#pragma once

#include <cstdint>

#include "common/count.h"
#include "cpu/drivers/tile.h"

namespace lpk {

// The counts of one piece. Neighbours go to different histograms, so that an increment seldom waits
// for the one before it.
struct Tally {
  static constexpr int kHistograms = 8;
  int64_t counts[kCounts] = {};
  bool histogram;
  uint32_t bins[kHistograms][kBins];

  explicit Tally(bool with_histogram);
  // Adds all to `to`, where other threads do so too.
  void add_to(int64_t* to) const;
};

// The values before and after a rounding: x are the tensor's values, `scaled` are the values that
// the rounding saw, and y are its results. The other members are RoundBlock's; its x and y are not
// read.
struct CountSpan {
  RoundBlock block;
  const double* x;
  const double* scaled;
  const double* y;
};

// Values and results of an affine format whose ends, one for all or one for each, are low .. high.
struct CountAffine {
  const double* x;
  const double* y;
  int64_t count;
  bool by_element;
  const double* low;
  const double* high;
};

struct CountKernels {
  // Counts what a rounding of `count` words x to y did, where no word overflows: false, and nothing
  // done, where a word has a magnitude beyond `inside`. Both have room for a vector more.
  bool (*words)(const uint32_t* x, const uint32_t* y, int64_t count, uint32_t inside, Tally*);
  // Writes the words of elements begin .. begin + count of the block to its y.
  void (*write)(const uint32_t* words, const ElementBlock&, int64_t begin, int64_t count);
  void (*span)(const CountSpan&, Tally*);
  void (*affine)(const CountAffine&, Tally*);
};

}  // namespace lpk
